// fp8 and block-quantized (int8, int4) keys and values: every operation that writes, moves or
// reads page rows must give the reference's bytes on each backend. (Other tests cover correctness:
// each operation's own test with plain elements, page_row_test for block contents,
// decode_attention_test for attention.)
#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/page_row.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/paged_pool.h"

namespace hydrant {
namespace {

constexpr int kHeads = 3, kDim = 64, kWidth = 6;
constexpr int kPrompt = 61, kNew = 7;
constexpr uint64_t kSeed = 20261126;

// A pool of one sequence with one layer; unwritten bytes are 0xAB.
PagedPool OneSequence(DType dtype, bool rolling) {
  PagedPool pool({.num_kv_heads = kHeads, .width = kWidth, .dtype = dtype, .head_dim = kDim},
                 kSeed);
  pool.keys.assign(pool.keys.size(), 0xAB);
  pool.values = pool.keys;
  pool.positions.assign(pool.positions.size(), -7);
  pool.scores.assign(pool.scores.size(), 0.0f);
  pool.log_weights.assign(2 * pool.scores.size(), 0.0f);
  pool.rules = {{.by_position = true, .scored = true, .rolling = rolling}};
  return pool;
}

class BlockPagesTest : public BackendTest {
 protected:
  // `work` must leave the same state on this backend and on the reference.
  using Work = std::function<void(Backend&, DevicePool*)>;
  void ExpectAlike(const Work& work, bool rolling = false) {
    for (const DType dtype : {DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
      const auto reference = MakeBackend("reference");
      const PagedPool expected = Run(*reference, dtype, rolling, work);
      ASSERT_NE(expected.keys, std::vector<uint8_t>(expected.keys.size(), 0xAB));
      const PagedPool left = Run(backend(), dtype, rolling, work);
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " seed " + std::to_string(kSeed));
      EXPECT_TRUE(left.keys == expected.keys);
      EXPECT_TRUE(left.values == expected.values);
      EXPECT_EQ(left.positions, expected.positions);
      EXPECT_EQ(left.lengths, expected.lengths);
    }
  }

  static void WritePrompt(Backend& backend, DevicePool* pool) {
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
                        .pages = pool->Pages(),
                        .tables = pool->Tables()});
    ASSERT_TRUE(backend.Synchronize().ok());
  }

 private:
  static PagedPool Run(Backend& backend, DType dtype, bool rolling, const Work& work) {
    PagedPool pool = OneSequence(dtype, rolling);
    DevicePool on_device(backend, pool);
    work(backend, &on_device);
    on_device.ReadBack(&pool);
    return pool;
  }
};

TEST_P(BlockPagesTest, APromptIsWritten) { ExpectAlike(WritePrompt); }

TEST_P(BlockPagesTest, ARollingPromptIsWritten) { ExpectAlike(WritePrompt, true); }

TEST_P(BlockPagesTest, TokensAreAppended) {
  ExpectAlike([](Backend& backend, DevicePool* pool) {
    WritePrompt(backend, pool);
    DeviceArray<float> k(backend, RandomFloats(kHeads * kNew * kDim, kSeed + 4));
    DeviceArray<float> v(backend, RandomFloats(kHeads * kNew * kDim, kSeed + 5));
    backend.AppendPages({.k = k.data(),
                         .v = v.data(),
                         .kv_head_stride = kNew * kDim,
                         .num_tokens = kNew,
                         .first_position = kPrompt,
                         .pages = pool->Pages(),
                         .tables = pool->Tables()});
    ASSERT_TRUE(backend.Synchronize().ok());
  });
}

TEST_P(BlockPagesTest, EntriesMoveTogether) {
  ExpectAlike([](Backend& backend, DevicePool* pool) {
    WritePrompt(backend, pool);
    DeviceArray<int32_t> keep(backend, {30, 21, 8});
    backend.Compact({.keep = keep.data(),
                     .sinks = 4,
                     .next_position = kPrompt,
                     .max_length = kPrompt,
                     .pages = pool->Pages(),
                     .tables = pool->Tables()});
    ASSERT_TRUE(backend.Synchronize().ok());
  });
}

TEST_P(BlockPagesTest, PagesAreCopied) {
  ExpectAlike([](Backend& backend, DevicePool* pool) {
    WritePrompt(backend, pool);
    const PagedPool host = OneSequence(DType::kQ8_0, false);  // all dtypes have the same ids
    std::vector<bool> taken(host.layout.num_blocks, false);
    const PageIds* first = host.blocks.data() + host.row_begin[0];
    for (const PageIds* ids = first; ids < host.blocks.data() + host.blocks.size(); ++ids)
      taken[ids->data] = true;
    const auto spare =
        static_cast<int32_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
    const PageIds to = WithState(spare, host.layout.num_blocks);
    DeviceArray<PageCopy> copies(backend, {{.from = *first, .to = to}});
    backend.CopyPages(
        {.copies = copies.data(), .count = 1, .from = pool->Pages(), .to = pool->Pages()});
    ASSERT_TRUE(backend.Synchronize().ok());
  });
}

// Save and load: values are rounded once.
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

// Queries are rounded before rotation, keys after it; values are only rounded. The rotation here is
// by zero, so that the bits are known. Factors apply to rounded queries and to keys before they are
// rounded, then offsets.
TEST_P(BlockPagesTest, RowsAreRoundedAsTheyAreSplit) {
  constexpr int kRows = 5, kQueryHeads = 6;
  for (const auto& [dtype, scaled] : {std::pair(DType::kE4M3, false),
                                      {DType::kQ8_0, false},
                                      {DType::kQ8_0, true},
                                      {DType::kQ4_0, false},
                                      {DType::kQ4_0, true}}) {
    SCOPED_TRACE(testing::Message() << DTypeName(dtype) << (scaled ? ", scaled" : ""));
    std::vector<float> factors(static_cast<size_t>(kQueryHeads + kHeads) * kDim);
    for (size_t i = 0; i < factors.size(); ++i)  // equal for both elements of a pair
      factors[i] = std::ldexp(1.0f, static_cast<int>(i / kDim * 3 + i % (kDim / 2)) % 9 - 4);
    const std::vector<float> offsets = RandomFloats(kHeads * kDim, kSeed + 12);
    auto device_factors = Upload(factors), device_offsets = Upload(offsets);
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
                         .factors = scaled ? device_factors.data() : nullptr,
                         .key_offsets = scaled ? device_offsets.data() : nullptr,
                         .q = q.data(),
                         .k = k.data(),
                         .v = v.data(),
                         .kv_row_stride = kHeads * kDim,
                         .kv_head_stride = kDim,
                         .kv_precision = dtype,
                         .query_precision = dtype});
    for (size_t row = 0; row < qkv.size(); row += kDim) {
      const int head = static_cast<int>(row / kDim) % (kQueryHeads + 2 * kHeads);
      const bool query = head < kQueryHeads, key = !query && head < kQueryHeads + kHeads;
      if (query) RoundPageRow(dtype, kDim, &qkv[row]);
      for (int i = 0; scaled && (query || key) && i < kDim; ++i) {
        qkv[row + i] *= factors[static_cast<size_t>(head) * kDim + i];
        if (key) qkv[row + i] -= offsets[static_cast<size_t>(head - kQueryHeads) * kDim + i];
      }
      if (!query) RoundPageRow(dtype, kDim, &qkv[row]);
    }
    std::vector<float> expected[3];
    for (int row = 0; row < kRows; ++row) {
      const float* at = &qkv[static_cast<size_t>(row) * (kQueryHeads + 2 * kHeads) * kDim];
      for (const auto& [part, heads] : {std::pair(0, kQueryHeads), {1, kHeads}, {2, kHeads}}) {
        expected[part].insert(expected[part].end(), at, at + heads * kDim);
        at += heads * kDim;
      }
    }
    EXPECT_EQ(q.Read(), expected[0]);
    EXPECT_EQ(k.Read(), expected[1]);
    EXPECT_EQ(v.Read(), expected[2]);
  }
}

// Queries with a paged prefix and their own keys after it.
TEST_P(BlockPagesTest, PromptsAttendToEntries) {
  constexpr int kQueryHeads = 6;
  for (const DType dtype : {DType::kE4M3, DType::kQ8_0, DType::kQ4_0}) {
    std::vector<std::vector<float>> outs;
    const auto reference = MakeBackend("reference");
    for (Backend* on : {reference.get(), &backend()}) {
      DevicePool pool(*on, OneSequence(dtype, false));
      WritePrompt(*on, &pool);
      DeviceArray<float> q(*on, RandomFloats(kNew * kQueryHeads * kDim, kSeed + 9));
      DeviceArray<float> k(*on, RandomFloats(kHeads * kNew * kDim, kSeed + 10));
      DeviceArray<float> v(*on, RandomFloats(kHeads * kNew * kDim, kSeed + 11));
      DeviceArray<float> out(*on, std::vector<float>(q.size(), kNan));
      const PagedPrefix prefix = {
          .pages = pool.Pages(), .tables = pool.Tables(), .max_entries = kPrompt};
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
