// The kernel of sm90_statistics.h: products by sm90_products.cuh, statistics by key_statistics.cuh.
#ifndef HYDRANT_KERNELS_CUDA_SM90_STATISTICS_CUH_
#define HYDRANT_KERNELS_CUDA_SM90_STATISTICS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/head_tiles.cuh"
#include "kernels/cuda/key_statistics.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill_runs.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sm90_products.cuh"
#include "kernels/cuda/sm90_statistics.h"

namespace hydrant::cuda {

inline constexpr int kStepTiles = kSm90Columns / kQueryTile;  // tiles of queries that stream as one
static_assert(kSm90Rows == kMmaKeys && kSm90BlockRows == kSm90StatisticKeys);
static_assert(kStepTiles * kQueryTile == kSm90Columns);

// The first of the warpgroup's rows among the block's, and of the warp's among those.
__device__ inline int WarpgroupRow() {
  return static_cast<int>(threadIdx.x) / kWarpgroupSize * kSm90Rows;
}
__device__ inline int WarpRow() {
  return static_cast<int>(threadIdx.x) % kWarpgroupSize / kWarpSize * 16;
}

// A step of 64 queries of one head of the group; the next head's step follows.
struct QueryStep {
  int tile, g = 0;

  __device__ void Next(int group) {
    if (++g < group) return;
    g = 0;
    tile += kStepTiles;
  }
};

// kCount column statistics of the same weights: a block owns 128 keys of one KV head, 64 a
// warpgroup, and adds the tiles of 32 queries in their order. With TileParts the tiles are dealt to
// the grid's z.
template <bool kBF16, int kDims, int kCount>
class Sm90ColumnStatistics {
 public:
  using Products = Sm90Products<kBF16, kDims>;
  using Tile = typename Products::Tile;
  static constexpr size_t kLogSumExpBytes = sizeof(float) * kSm90Stages * kSm90Columns;
  static constexpr size_t kSharedBytes = kLogSumExpBytes + Products::kSharedBytes;

  // Blocks of kSm90StatisticKeys keys.
  __device__ Sm90ColumnStatistics(const MmaArgs& m, const PassStatistics& statistics,
                                  const TileParts& parts, HeadTile block)
      : m_(m),
        statistics_(statistics),
        group_(m.args.num_heads / m.args.num_kv_heads),
        first_key_(block.tile * kSm90StatisticKeys),
        kv_head_(block.head),
        log_sum_exps_(DynamicShared<float>()),
        products_(DynamicShared<unsigned char>() + kLogSumExpBytes),
        of_keys_(m, statistics, parts, kv_head_, first_key_ + WarpgroupRow(), WarpRow()) {}

  __device__ void Run() {
    const int dims = m_.args.head_dim, lane = static_cast<int>(threadIdx.x) % kWarpSize;
    if (first_key_ + kSm90StatisticKeys - 1 < m_.prefix.First(kv_head_)) return;
    const QueryTiles tiles = Tiles();
    const int steps = CeilDiv(tiles.end - tiles.first, kStepTiles) * group_;
    if (steps <= 0) return;
    products_.LoadRows(m_.k + static_cast<size_t>(kv_head_) * m_.head_rows * dims, dims,
                       first_key_ + WarpgroupRow() + WarpRow() + lane / 4, m_.keys, dims);
    of_keys_.LoadTotals();
    QueryStep loaded{tiles.first}, used{tiles.first};
    float reduced[kCount][Products::kPieces][4];
    products_.Stream(
        steps,
        [&](int stage, const Tile& to) {
          Load(loaded, stage, to);
          loaded.Next(group_);
        },
        [&](int stage, const float(&products)[Products::kPieces][4]) {
          float weights[Products::kPieces][4];
          const float* lse = log_sum_exps_ + stage * kSm90Columns + lane % 4 * 2;
          of_keys_.ToWeights(
              used.tile,
              [lse](int column) { return *reinterpret_cast<const float2*>(lse + column * 8); },
              products, weights);
          of_keys_.Add(used.tile, tiles.end, used.g, weights, reduced);
          used.Next(group_);
        });
    of_keys_.StoreTotals();
  }

 private:
  // Those that this block adds. The keys of one warpgroup may be of the prefix, the other's of the
  // run.
  __device__ QueryTiles Tiles() const {
    QueryTiles all;
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      const ColumnStatistic& statistic = statistics_.of[s];
      const int last_key = first_key_ + kSm90StatisticKeys - 1;
      if (m_.prefix.Of(statistic, kv_head_, last_key) != nullptr ||
          m_.prefix.Of(statistic, kv_head_, last_key - kSm90Rows) != nullptr)
        all.Add(m_.args, statistic, first_key_);
    }
    return all.OfBlock(kStepTiles);
  }

  // Starts the copies of a step's queries and their log-sum-exps.
  __device__ void Load(const QueryStep& step, int stage, const Tile& to) const {
    const PrefillAttentionArgs& args = m_.args;
    const int first = step.tile * kQueryTile, head = kv_head_ * group_ + step.g;
    const int stride = args.num_heads * args.head_dim;
    to.Load(m_.q + int64_t{first} * stride + head * args.head_dim, stride, args.num_queries - first,
            args.head_dim);
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kSm90Columns) return;
    const bool exists = first + i < args.num_queries;
    CopyAsync4(
        log_sum_exps_ + stage * kSm90Columns + i,
        m_.log_sum_exp + static_cast<size_t>(head) * args.num_queries + (exists ? first + i : 0),
        exists);
  }

  const MmaArgs& m_;
  const PassStatistics& statistics_;
  const int group_, first_key_, kv_head_;
  float* const log_sum_exps_;  // [kSm90Stages, kSm90Columns]
  Products products_;
  KeyStatistics<kCount> of_keys_;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SM90_STATISTICS_CUH_
