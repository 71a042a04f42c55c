// Host side of the open kernel (kernels/cuda/sm90_attention.h), without a device: the supported
// runs, and that the parameters lead the kernel over every tile, the longest first, and to the
// right rows. The kernel's own formulas, after our changes, are rewritten here in plain loops.
#include "kernels/cuda/sm90_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace hydrant::cuda {
namespace {

alignas(16) uint16_t memory[64];

PrefillAttentionArgs RunOf(int first_position, int num_queries) {
  PrefillAttentionArgs args;
  args.q = {memory, DType::kBF16};
  args.k = {memory + 8, DType::kBF16};
  args.v = {memory + 16, DType::kBF16};
  args.out = memory + 24;
  args.out_dtype = DType::kBF16;
  args.precision = DType::kBF16;
  args.kv_head_stride = 4096 * 128;
  args.first_position = first_position;
  args.num_queries = num_queries;
  args.num_heads = 32;
  args.num_kv_heads = 8;
  args.head_dim = 128;
  args.scale = 0.088f;
  return args;
}

TEST(Sm90TakesTest, CausalRunsOfBFloat16) {
  EXPECT_TRUE(Sm90Takes(RunOf(0, 2048)));
  EXPECT_TRUE(Sm90Takes(RunOf(2080, kSm90LeastQueries)));
  EXPECT_FALSE(Sm90Takes(RunOf(2080, kSm90LeastQueries - 1)));
  const PagedPrefix prefix;
  const float sinks[32] = {};
  const std::vector<void (*)(PrefillAttentionArgs*)> changes = {
      [](PrefillAttentionArgs* a) { a->head_dim = 96; },
      [](PrefillAttentionArgs* a) { a->head_dim = 256; },
      [](PrefillAttentionArgs* a) { a->precision = DType::kF16; },
      [](PrefillAttentionArgs* a) { a->q.dtype = DType::kF32; },
      [](PrefillAttentionArgs* a) { a->k.dtype = DType::kF32; },
      [](PrefillAttentionArgs* a) { a->v.dtype = DType::kF16; },
      [](PrefillAttentionArgs* a) { a->out_dtype = DType::kF32; },
      [](PrefillAttentionArgs* a) { a->out = nullptr; },  // an echo
      [](PrefillAttentionArgs* a) { a->out = memory + 1; },
      [](PrefillAttentionArgs* a) { a->window = 1024; },
      [](PrefillAttentionArgs* a) { a->softcap = 50.0f; },
      [](PrefillAttentionArgs* a) { a->end_key = 100; },
      [](PrefillAttentionArgs* a) { a->scale = -1.0f; },
      [](PrefillAttentionArgs* a) { a->kv_head_stride += 4; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    PrefillAttentionArgs args = RunOf(0, 2048);
    changes[i](&args);
    EXPECT_FALSE(Sm90Takes(args)) << "change " << i;
  }
  PrefillAttentionArgs args = RunOf(0, 2048);
  args.prefix = &prefix;
  EXPECT_FALSE(Sm90Takes(args));
  args.prefix = nullptr;
  args.sink_logits = sinks;
  EXPECT_FALSE(Sm90Takes(args));
}

// The kernel's fastDivMod.
uint32_t Divide(const Sm90Divisor& by, uint32_t n) {
  return static_cast<uint32_t>(uint64_t{2 * n} * by.mul >> 32) >> by.shr;
}

TEST(Sm90PlanTest, DivisorsDivide) {
  constexpr uint32_t kSeed = 20260701;
  RecordProperty("seed", kSeed);
  std::mt19937 rng(kSeed);
  for (uint32_t d = 1; d < 3000; ++d) {
    const Sm90Divisor by = Sm90DivisorOf(d);
    EXPECT_EQ(by.d, d);
    for (const uint32_t n : {0u, d - 1, d, d + 1, 7 * d - 1, 7 * d, 65535u, 1u << 20})
      ASSERT_EQ(Divide(by, n), n / d) << n << " / " << d;
    for (int i = 0; i < 20; ++i) {
      const uint32_t n = rng() % (1u << 24);
      ASSERT_EQ(Divide(by, n), n / d) << n << " / " << d;
    }
  }
}

struct Tile {
  int head, first_query;
};

// The changed kernel's tile for a counter value.
Tile TileOf(const Sm90Plan& plan, int id) {
  const uint32_t of_batch = id - Divide(plan.tiles_of_batch, id) * plan.tiles_of_batch.d;
  const uint32_t from_end = Divide(plan.heads, of_batch);
  const auto head = static_cast<int>(of_batch - from_end * plan.heads.d);
  const int last = (static_cast<int>(plan.sizes.queries) - 1) / kSm90Tile;
  return {head, (last - static_cast<int>(from_end)) * kSm90Tile};
}

// Number of key tiles that it processes.
int KeyTiles(const Sm90Plan& plan, int first_query) {
  const int shift = static_cast<int>(plan.sizes.keys - plan.sizes.queries);
  const int of_queries = (first_query + shift + kSm90Tile + kSm90Tile - 1) / kSm90Tile;
  const int of_keys = (static_cast<int>(plan.sizes.keys) + kSm90Tile - 1) / kSm90Tile;
  return std::min(of_queries, of_keys);
}

TEST(Sm90PlanTest, EveryTileOnceTheLongestFirst) {
  for (const int queries : {64, 127, 128, 129, 300, 2048}) {
    for (const int first : {0, 32, 160, 2048}) {
      const PrefillAttentionArgs args = RunOf(first, queries);
      const Sm90Plan plan = Sm90PlanOf(args, true);
      std::set<std::pair<int, int>> seen;
      int before = 1 << 30;
      for (int id = 0; id < plan.num_tiles; ++id) {
        const Tile tile = TileOf(plan, id);
        EXPECT_TRUE(tile.head >= 0 && tile.head < args.num_heads);
        EXPECT_TRUE(tile.first_query >= 0 && tile.first_query < queries);
        seen.emplace(tile.head, tile.first_query);
        EXPECT_LE(KeyTiles(plan, tile.first_query), before);
        before = KeyTiles(plan, tile.first_query);
      }
      EXPECT_EQ(static_cast<int>(seen.size()), plan.num_tiles);
      EXPECT_EQ(plan.num_tiles, (queries + 127) / 128 * args.num_heads);
    }
  }
}

// The kernel masks only in the last two key tiles, by `key <= query + shift` alone.
TEST(Sm90PlanTest, MasksHideFutureKeys) {
  for (const int queries : {64, 100, 128, 129, 300, 513}) {
    for (const int first : {0, 32, 64, 96, 128, 160, 1024}) {
      const PrefillAttentionArgs args = RunOf(first, queries);
      const Sm90Plan plan = Sm90PlanOf(args, false);
      const int shift = static_cast<int>(plan.sizes.keys - plan.sizes.queries);
      for (int q0 = 0; q0 < queries; q0 += kSm90Tile) {
        const int tiles = KeyTiles(plan, q0);
        for (int q = q0; q < std::min(q0 + kSm90Tile, queries); ++q) {
          int seen = 0;
          for (int t = 0; t < tiles; ++t) {
            for (int key = t * kSm90Tile; key < (t + 1) * kSm90Tile; ++key)
              seen += t < tiles - 2 || key <= q + shift ? 1 : 0;
          }
          ASSERT_EQ(seen, args.KeysSeenAt(first + q))
              << "query " << q << " of " << queries << " from " << first;
        }
      }
    }
  }
}

TEST(Sm90PlanTest, TensorsAreTheRunsRows) {
  PrefillAttentionArgs args = RunOf(160, 300);
  const Sm90Plan plan = Sm90PlanOf(args, true);
  const auto expect = [](const Sm90Tensor& tensor, const void* data, uint64_t rows, uint64_t heads,
                         uint64_t row_bytes, uint64_t head_bytes, uint32_t box_rows) {
    EXPECT_EQ(tensor.data, data);
    EXPECT_EQ(tensor.dims[0], 128u);
    EXPECT_EQ(tensor.dims[1], rows);
    EXPECT_EQ(tensor.dims[2], heads);
    EXPECT_EQ(tensor.dims[3], 1u);
    EXPECT_EQ(tensor.strides[0], row_bytes);
    EXPECT_EQ(tensor.strides[1], head_bytes);
    EXPECT_EQ(tensor.box[0] * sizeof(uint16_t), 128u) << "the width of the swizzle";
    EXPECT_EQ(tensor.box[1], box_rows);
    for (const uint64_t stride : tensor.strides) {
      EXPECT_EQ(stride % 16, 0u);
      EXPECT_GT(stride, 0u);
      EXPECT_LT(stride, uint64_t{1} << 40);
    }
  };
  expect(plan.q, args.q.data, 300, 32, 32 * 128 * 2, 128 * 2, 128);
  expect(plan.out, args.out, 300, 32, 32 * 128 * 2, 128 * 2, 16);
  expect(plan.k, args.k.data, 460, 8, 128 * 2, 4096 * 128 * 2, 128);
  expect(plan.v, args.v.data, 460, 8, 128 * 2, 4096 * 128 * 2, 128);
  EXPECT_EQ(plan.sizes.q_heads_a_k, 4);
  EXPECT_EQ(plan.sizes.queries, 300u);
  EXPECT_EQ(plan.sizes.keys, 460u);
  EXPECT_EQ(plan.rows.dims[2], 300);
  EXPECT_EQ(plan.rows.strides[1], 300);
  EXPECT_EQ(Sm90PlanOf(args, false).rows.dims[2], 0) << "no row is stored";
  // The sizes of the kernel's own structs.
  static_assert(sizeof(Sm90Sizes) == 40 && sizeof(Sm90Divisor) == 12 && sizeof(Sm90Rows) == 200);
}

}  // namespace
}  // namespace hydrant::cuda
