// Keys and values in fp8 and in blocks (int8, int4): what every operation that writes, moves or
// reads rows of pages leaves in them on each backend, beside the reference's, to the byte. (That
// these operations are right is shown with plain elements, by the tests of each; what a block
// holds, by page_row_test; attention, by decode_attention_test.)
#include <algorithm>
#include <climits>
#include <functional>
#include <numeric>

#include "kernels/page_row.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/page_ids.h"

namespace hydrant {
namespace {

constexpr int kHeads = 3, kDim = 64, kBlockSize = 16, kWidth = 6, kSpare = 5;
constexpr int kPages = kHeads * kWidth + kSpare;
constexpr size_t kSlots = static_cast<size_t>(kPages) * kBlockSize;
constexpr int kPrompt = 61, kNew = 7;
constexpr uint64_t kSeed = 20261126;

// A pool and one sequence of one layer, in a backend's memory.
struct Sequence {
  Sequence(Backend& backend, DType page_dtype, bool rolling)
      : dtype(page_dtype),
        keys(backend, std::vector<uint8_t>(BytesOf(dtype, kSlots * kDim), 0xAB)),
        values(backend, std::vector<uint8_t>(BytesOf(dtype, kSlots * kDim), 0xAB)),
        positions(backend, std::vector<int32_t>(kSlots, -7)),
        scores(backend, std::vector<float>(kSlots, 0.0f)),
        log_weights(backend, std::vector<float>(2 * kSlots, 0.0f)),
        blocks(backend, Blocks()),
        row_begin(backend, {0}),
        row_width(backend, {kWidth}),
        caps(backend, std::vector<int32_t>(kHeads, INT32_MAX)),
        lengths(backend, std::vector<int32_t>(kHeads, 0)),
        victims(backend, std::vector<int32_t>(kHeads, -1)),
        rules(backend, {DecodeRule{.by_position = true, .scored = true, .rolling = rolling}}) {}

  static std::vector<PageIds> Blocks() {
    std::vector<int32_t> ids(kPages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64(kSeed));
    ids.resize(static_cast<size_t>(kHeads) * kWidth);
    return WithStates(ids, kPages);
  }
  KvPages Pages() {
    return {{dtype, kDim, kBlockSize, kPages},
            keys.data(),
            values.data(),
            positions.data(),
            scores.data(),
            log_weights.data()};
  }
  SequenceTables Tables() {
    SequenceTables tables;
    tables.num_layers = 1;
    tables.num_kv_heads = kHeads;
    tables.blocks = blocks.data();
    tables.row_begin = row_begin.data();
    tables.row_width = row_width.data();
    tables.caps = caps.data();
    tables.lengths = lengths.data();
    tables.victims = victims.data();
    tables.rules = rules.data();
    return tables;
  }

  DType dtype;
  DeviceArray<uint8_t> keys, values;
  DeviceArray<int32_t> positions;
  DeviceArray<float> scores, log_weights;
  DeviceArray<PageIds> blocks;
  DeviceArray<int64_t> row_begin;
  DeviceArray<int32_t> row_width, caps, lengths, victims;
  DeviceArray<DecodeRule> rules;
};

struct Left {
  std::vector<uint8_t> keys, values;
  std::vector<int32_t> positions, lengths;

  friend bool operator==(const Left&, const Left&) = default;
};

class BlockPagesTest : public BackendTest {
 protected:
  // What `work` leaves on this backend is what it leaves on the reference.
  using Work = std::function<void(Backend&, Sequence*)>;
  void ExpectAlike(const Work& work, bool rolling = false) {
    for (const DType dtype : {DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
      const auto reference = MakeBackend("reference");
      const Left expected = Run(*reference, dtype, rolling, work);
      ASSERT_NE(expected.keys, std::vector<uint8_t>(expected.keys.size(), 0xAB));
      EXPECT_TRUE(Run(backend(), dtype, rolling, work) == expected)
          << DTypeName(dtype) << " seed " << kSeed;
    }
  }

  static void WritePrompt(Backend& backend, Sequence* sequence) {
    DeviceArray<float> k(backend, RandomFloats(kHeads * kPrompt * kDim, kSeed, 3.0f));
    DeviceArray<float> v(backend, RandomFloats(kHeads * kPrompt * kDim, kSeed + 1));
    DeviceArray<int32_t> keep(backend, {kPrompt, 40, 9});
    std::vector<int32_t> all(kHeads * kPrompt);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i % kPrompt);
    for (int i = 0; i < 40; ++i) all[kPrompt + i] = i + i / 2;
    for (int i = 0; i < 9; ++i) all[2 * kPrompt + i] = 6 * i + 3;
    DeviceArray<int32_t> kept(backend, all);
    DeviceArray<float> cos(backend, RandomFloats(kPrompt * kDim / 2, kSeed + 2));
    DeviceArray<float> sin(backend, RandomFloats(kPrompt * kDim / 2, kSeed + 3));
    backend.WritePages({.k = k.data(),
                        .v = v.data(),
                        .kv_head_stride = kPrompt * kDim,
                        .kept = kept.data(),
                        .kept_stride = kPrompt,
                        .keep = keep.data(),
                        .n = kPrompt,
                        .rotary = {.cos = cos.data(), .sin = sin.data(), .rotary_dim = 0},
                        .pages = sequence->Pages(),
                        .tables = sequence->Tables()});
    ASSERT_TRUE(backend.Synchronize().ok());
  }

 private:
  static Left Run(Backend& backend, DType dtype, bool rolling, const Work& work) {
    Sequence sequence(backend, dtype, rolling);
    work(backend, &sequence);
    return {sequence.keys.Read(), sequence.values.Read(), sequence.positions.Read(),
            sequence.lengths.Read()};
  }
};

TEST_P(BlockPagesTest, APromptIsWritten) { ExpectAlike(WritePrompt); }

TEST_P(BlockPagesTest, ARollingPromptIsWritten) { ExpectAlike(WritePrompt, true); }

TEST_P(BlockPagesTest, TokensAreAppended) {
  ExpectAlike([](Backend& backend, Sequence* sequence) {
    WritePrompt(backend, sequence);
    DeviceArray<float> k(backend, RandomFloats(kHeads * kNew * kDim, kSeed + 4));
    DeviceArray<float> v(backend, RandomFloats(kHeads * kNew * kDim, kSeed + 5));
    backend.AppendPages({.k = k.data(),
                         .v = v.data(),
                         .kv_head_stride = kNew * kDim,
                         .num_tokens = kNew,
                         .first_position = kPrompt,
                         .pages = sequence->Pages(),
                         .tables = sequence->Tables()});
    ASSERT_TRUE(backend.Synchronize().ok());
  });
}

TEST_P(BlockPagesTest, EntriesMoveTogether) {
  ExpectAlike([](Backend& backend, Sequence* sequence) {
    WritePrompt(backend, sequence);
    DeviceArray<int32_t> keep(backend, {30, 21, 8});
    backend.Compact({.keep = keep.data(),
                     .sinks = 4,
                     .next_position = kPrompt,
                     .max_length = kPrompt,
                     .pages = sequence->Pages(),
                     .tables = sequence->Tables()});
    ASSERT_TRUE(backend.Synchronize().ok());
  });
}

TEST_P(BlockPagesTest, PagesAreCopied) {
  ExpectAlike([](Backend& backend, Sequence* sequence) {
    WritePrompt(backend, sequence);
    std::vector<bool> taken(kPages, false);
    for (const PageIds& ids : Sequence::Blocks()) taken[ids.data] = true;
    const auto spare =
        static_cast<int32_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
    const PageIds from = Sequence::Blocks().front(), to = WithState(spare, kPages);
    DeviceArray<PageCopy> copies(backend, {{.from = from, .to = to}});
    backend.CopyPages(
        {.copies = copies.data(), .count = 1, .from = sequence->Pages(), .to = sequence->Pages()});
    ASSERT_TRUE(backend.Synchronize().ok());
  });
}

// Save, and load again: what comes back is what was rounded once.
TEST_P(BlockPagesTest, PrefixesComeBack) {
  constexpr int kTokens = 2 * kPrefixBlockTokens;
  for (const DType dtype : {DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
    std::vector<float> k = RandomFloats(kHeads * kTokens * kDim, kSeed + 6);
    std::vector<float> v = RandomFloats(kHeads * kTokens * kDim, kSeed + 7);
    PrefixBlocks pool = {.dtype = dtype, .num_layers = 1, .num_kv_heads = kHeads, .head_dim = kDim};
    auto memory = Upload(std::vector<uint8_t>(3 * pool.BlockBytes(), 0xAB));
    pool.memory = memory.data();
    auto blocks = Upload(std::vector<int32_t>{2, 0});
    auto device_k = Upload(k), device_v = Upload(v);
    PrefixBlocksArgs args = {.k = device_k.data(),
                             .v = device_v.data(),
                             .kv_head_stride = kTokens * kDim,
                             .row_stride = kDim,
                             .blocks = blocks.data(),
                             .count = 2,
                             .pool = pool};
    backend().SavePrefix(args);
    auto loaded_k = Output(k.size()), loaded_v = Output(v.size());
    args.k = loaded_k.data();
    args.v = loaded_v.data();
    backend().LoadPrefix(args);
    for (size_t row = 0; row < k.size(); row += kDim) {
      RoundPageRow(dtype, kDim, &k[row]);
      RoundPageRow(dtype, kDim, &v[row]);
    }
    EXPECT_EQ(loaded_k.Read(), k) << DTypeName(dtype);
    EXPECT_EQ(loaded_v.Read(), v) << DTypeName(dtype);
    const std::vector<uint8_t> stored = memory.Read();
    EXPECT_TRUE(std::all_of(stored.begin() + pool.BlockBytes(),
                            stored.begin() + 2 * pool.BlockBytes(),
                            [](uint8_t byte) { return byte == 0xAB; }));
  }
}

// Queries are rounded before they are turned, keys after it; values as they are. Turned by nothing
// here, so that the bits are known.
TEST_P(BlockPagesTest, RowsAreRoundedAsTheyAreSplit) {
  constexpr int kRows = 5, kQueryHeads = 6;
  for (const DType dtype : {DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
    std::vector<float> qkv = RandomFloats(kRows * (kQueryHeads + 2 * kHeads) * kDim, kSeed + 8);
    auto device_qkv = Upload(qkv);
    auto positions = Upload(std::vector<int32_t>(kRows, 0));
    auto cos = Upload(std::vector<float>(kDim / 2, 1.0f));
    auto sin = Upload(std::vector<float>(kDim / 2, 0.0f));
    auto q = Output(kRows * kQueryHeads * kDim);
    auto k = Output(kRows * kHeads * kDim), v = Output(kRows * kHeads * kDim);
    backend().RopeSplit({.qkv = device_qkv.data(),
                         .positions = positions.data(),
                         .cos = cos.data(),
                         .sin = sin.data(),
                         .m = kRows,
                         .num_heads = kQueryHeads,
                         .num_kv_heads = kHeads,
                         .head_dim = kDim,
                         .rotary_dim = kDim,
                         .q = q.data(),
                         .k = k.data(),
                         .v = v.data(),
                         .kv_row_stride = kHeads * kDim,
                         .kv_head_stride = kDim,
                         .kv_precision = dtype,
                         .query_precision = dtype});
    for (size_t row = 0; row < qkv.size(); row += kDim) RoundPageRow(dtype, kDim, &qkv[row]);
    std::vector<float> expected[3];
    for (int row = 0; row < kRows; ++row) {
      const float* at = &qkv[static_cast<size_t>(row) * (kQueryHeads + 2 * kHeads) * kDim];
      for (const auto& [part, heads] : {std::pair(0, kQueryHeads), {1, kHeads}, {2, kHeads}}) {
        expected[part].insert(expected[part].end(), at, at + heads * kDim);
        at += heads * kDim;
      }
    }
    EXPECT_EQ(q.Read(), expected[0]) << DTypeName(dtype);
    EXPECT_EQ(k.Read(), expected[1]) << DTypeName(dtype);
    EXPECT_EQ(v.Read(), expected[2]) << DTypeName(dtype);
  }
}

// Queries that see a prefix in pages, and keys of their own behind it.
TEST_P(BlockPagesTest, PromptsAttendToEntries) {
  constexpr int kQueryHeads = 6;
  for (const DType dtype : {DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
    std::vector<std::vector<float>> outs;
    const auto reference = MakeBackend("reference");
    for (Backend* on : {reference.get(), &backend()}) {
      Sequence sequence(*on, dtype, false);
      WritePrompt(*on, &sequence);
      DeviceArray<float> q(*on, RandomFloats(kNew * kQueryHeads * kDim, kSeed + 9));
      DeviceArray<float> k(*on, RandomFloats(kHeads * kNew * kDim, kSeed + 10));
      DeviceArray<float> v(*on, RandomFloats(kHeads * kNew * kDim, kSeed + 11));
      DeviceArray<float> out(*on, std::vector<float>(q.size(), kNan));
      const PagedPrefix prefix = {
          .pages = sequence.Pages(), .tables = sequence.Tables(), .max_entries = kPrompt};
      on->PrefillAttention({.q = q.data(),
                            .k = k.data(),
                            .v = v.data(),
                            .kv_head_stride = kNew * kDim,
                            .num_queries = kNew,
                            .num_heads = kQueryHeads,
                            .num_kv_heads = kHeads,
                            .head_dim = kDim,
                            .scale = 0.125f,
                            .out = out.data(),
                            .prefix = &prefix});
      outs.push_back(out.Read());
    }
    ExpectNear(outs[1], {outs[0].begin(), outs[0].end()}, std::vector<double>(outs[0].size(), 2e-5),
               std::string(DTypeName(dtype)));
  }
}

HYDRANT_FOR_EACH_BACKEND(BlockPagesTest);

}  // namespace
}  // namespace hydrant
