// 16-bit arena rows (kernels/arena_rows.h): operations read the same values as from fp32 rows, and
// write rounded fp32.
#include "kernels/arena_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/float16.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

uint16_t Round(DType dtype, float x) {
  return dtype == DType::kBF16 ? FloatToBF16(x) : FloatToF16(x);
}
float Widen(DType dtype, uint16_t x) {
  return dtype == DType::kBF16 ? BF16ToFloat(x) : F16ToFloat(x);
}

// Numbers exact in 16 bits, as fp32 and as 16-bit values.
struct Numbers {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;

  Numbers(DType dtype, size_t count, uint64_t seed) {
    for (const float x : RandomFloats(count, seed)) {
      narrow.push_back(Round(dtype, x));
      wide.push_back(Widen(dtype, narrow.back()));
    }
  }
};

class ArenaRowsTest : public BackendTest {
 protected:
  static constexpr int kHeads = 3, kHeadDim = 64, kTokens = 70;
  static constexpr int64_t kHeadStride = (kTokens + 5) * kHeadDim;

  // Calls check(dtype) for each page dtype for which the backend has 16-bit arenas.
  template <typename Check>
  void ForDTypes(const Check& check,
                 const std::vector<DType>& dtypes = {DType::kBF16, DType::kF16}) {
    int checked = 0;
    for (const DType dtype : dtypes) {
      if (backend().ArenaDType(dtype, kHeadDim) == DType::kF32) continue;
      SCOPED_TRACE(std::string(DTypeName(dtype)));
      check(dtype);
      ++checked;
    }
    if (checked == 0) GTEST_SKIP() << "the backend's arenas are of fp32";
  }
};

TEST_P(ArenaRowsTest, KCenter) {
  ForDTypes([&](DType dtype) {
    const Numbers numbers(dtype, kHeads * kHeadStride, 1);
    auto wide = Upload(numbers.wide);
    auto narrow = Upload(numbers.narrow);
    std::vector<std::vector<float>> scores;
    for (const ArenaRows& k : {ArenaRows(wide.data()), ArenaRows(narrow.data(), dtype)}) {
      auto out = Output(kHeads * kTokens);
      backend().KCenter({.k = k,
                         .kv_head_stride = kHeadStride,
                         .num_kv_heads = kHeads,
                         .head_dim = kHeadDim,
                         .n = kTokens,
                         .centres = 9,
                         .scores = out.data(),
                         .score_stride = kTokens});
      scores.push_back(out.Read());
    }
    EXPECT_EQ(scores[0], scores[1]);
  });
}

TEST_P(ArenaRowsTest, LengthsOfRows) {
  ForDTypes([&](DType dtype) {
    const Numbers numbers(dtype, kHeads * kHeadStride, 2);
    auto wide = Upload(numbers.wide);
    auto narrow = Upload(numbers.narrow);
    auto a = Upload(RandomFloats(kHeads * kTokens, 3));
    std::vector<std::vector<float>> scores;
    for (const ArenaRows& rows : {ArenaRows(wide.data()), ArenaRows(narrow.data(), dtype)}) {
      auto out = Output(kHeads * kTokens);
      DeriveScoresArgs args = {.step = ScoreStep::kTimesLength,
                               .num_kv_heads = kHeads,
                               .n = kTokens,
                               .rows = rows,
                               .row_head_stride = kHeadStride,
                               .dims = kHeadDim};
      args.a = a.data();
      args.out = out.data();
      args.stride = kTokens;
      backend().DeriveScores(args);
      scores.push_back(out.Read());
    }
    EXPECT_EQ(scores[0], scores[1]);
  });
}

// Round trip to a pool of the same dtype: bits are unchanged.
TEST_P(ArenaRowsTest, PrefixBlocks) {
  ForDTypes([&](DType dtype) {
    const Numbers k(dtype, kHeads * kHeadStride, 4), v(dtype, kHeads * kHeadStride, 5);
    PrefixBlocks pool = {
        .dtype = dtype, .num_layers = 1, .num_kv_heads = kHeads, .head_dim = kHeadDim};
    auto memory = Upload(std::vector<uint8_t>(2 * pool.BlockBytes()));
    pool.memory = memory.data();
    auto from_k = Upload(k.narrow), from_v = Upload(v.narrow);
    auto to_k = Upload(std::vector<uint16_t>(k.narrow.size())), to_v = Upload(to_k.Read());
    auto blocks = Upload(std::vector<int32_t>{1, 0});
    PrefixBlocksArgs args = {.k = {from_k.data(), dtype},
                             .v = {from_v.data(), dtype},
                             .kv_head_stride = kHeadStride,
                             .row_stride = kHeadDim,
                             .blocks = blocks.data(),
                             .count = 2,
                             .layer = 0,
                             .pool = pool};
    backend().SavePrefix(args);
    args.k = {to_k.data(), dtype};
    args.v = {to_v.data(), dtype};
    backend().LoadPrefix(args);
    const std::vector<uint16_t> got_k = to_k.Read(), got_v = to_v.Read();
    constexpr int kSaved = 2 * kPrefixBlockTokens * kHeadDim;
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kSaved; ++i) {
        ASSERT_EQ(got_k[h * kHeadStride + i], k.narrow[h * kHeadStride + i]);
        ASSERT_EQ(got_v[h * kHeadStride + i], v.narrow[h * kHeadStride + i]);
      }
      for (int64_t i = kSaved; i < kHeadStride; ++i) ASSERT_EQ(got_k[h * kHeadStride + i], 0);
    }
  });
}

TEST_P(ArenaRowsTest, Rotation) {
  constexpr int kQueryHeads = 6, kRotated = 32;
  const auto check = [&](DType pages) {
    const DType dtype = backend().ArenaDType(pages, kHeadDim);
    auto qkv = Upload(RandomFloats(kTokens * (kQueryHeads + 2 * kHeads) * kHeadDim, 6));
    auto cos = Upload(RandomFloats(kTokens * kRotated / 2, 7));
    auto sin = Upload(RandomFloats(kTokens * kRotated / 2, 8));
    std::vector<int32_t> at(kTokens);
    for (int i = 0; i < kTokens; ++i) at[i] = i;
    auto positions = Upload(at);
    const size_t q_count = kTokens * kQueryHeads * kHeadDim, kv_count = kHeads * kHeadStride;
    auto wide_q = Output(q_count), wide_k = Output(kv_count), wide_v = Output(kv_count);
    const std::vector<uint16_t> untouched(kv_count, 0x7FFF);
    auto q = Upload(std::vector<uint16_t>(q_count)), k = Upload(untouched), v = Upload(untouched);
    RopeSplitArgs args = {.qkv = qkv.data(),
                          .positions = positions.data(),
                          .cos = cos.data(),
                          .sin = sin.data(),
                          .m = kTokens,
                          .num_heads = kQueryHeads,
                          .num_kv_heads = kHeads,
                          .head_dim = kHeadDim,
                          .rotary_dim = kRotated,
                          .q = wide_q.data(),
                          .k = wide_k.data(),
                          .v = wide_v.data(),
                          .kv_row_stride = kHeadDim,
                          .kv_head_stride = kHeadStride,
                          .kv_precision = pages};
    backend().RopeSplit(args);
    args.q = {q.data(), dtype};
    args.k = {k.data(), dtype};
    args.v = {v.data(), dtype};
    backend().RopeSplit(args);
    const std::vector<float> expected_q = wide_q.Read(), expected_k = wide_k.Read(),
                             expected_v = wide_v.Read();
    const std::vector<uint16_t> got_q = q.Read(), got_k = k.Read(), got_v = v.Read();
    for (size_t i = 0; i < q_count; ++i) ASSERT_EQ(got_q[i], Round(dtype, expected_q[i])) << i;
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < kHeadStride; ++i) {
        const bool written = i < kTokens * kHeadDim;
        const size_t at_i = h * kHeadStride + i;
        ASSERT_EQ(got_k[at_i], written ? Round(dtype, expected_k[at_i]) : 0x7FFF) << at_i;
        ASSERT_EQ(got_v[at_i], written ? Round(dtype, expected_v[at_i]) : 0x7FFF) << at_i;
        if (pages != DType::kE4M3 || !written) continue;
        const float byte = E4M3ToFloat(FloatToE4M3(expected_k[at_i]));
        ASSERT_EQ(Widen(dtype, got_k[at_i]), byte) << "bf16 has all of e4m3";
      }
    }
  };
  ForDTypes(check, {DType::kBF16, DType::kF16, DType::kE4M3});
}

HYDRANT_FOR_EACH_BACKEND(ArenaRowsTest);

}  // namespace
}  // namespace hydrant
