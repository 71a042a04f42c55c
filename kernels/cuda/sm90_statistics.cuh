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

inline constexpr int kStepTiles = kSm90Columns / kQueryTile;  // query tiles streamed together
static_assert(kSm90Rows == kMmaKeys && kSm90BlockRows == kSm90StatisticKeys);
static_assert(kStepTiles * kQueryTile == kSm90Columns);

// First row of the warpgroup in the block, and of the warp in the warpgroup.
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

// kCount column statistics of the same weights. A block owns 128 keys of one KV head, 64 per
// warpgroup, and adds the tiles of 32 queries in order. With TileParts the query tiles are
// distributed over the grid's z.
template <bool kBF16, int kDims, int kCount>
class Sm90ColumnStatistics {
 public:
  using Products = Sm90Products<kBF16, kDims>;
  using Tile = typename Products::Tile;
  static constexpr size_t kLogSumExpBytes = sizeof(float) * kSm90Stages * kSm90Columns;
  static constexpr size_t kSharedBytes = kLogSumExpBytes + Products::kSharedBytes;

  // `block` counts tiles of kSm90StatisticKeys keys.
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
  // The query tiles that this block adds. One warpgroup's keys may be in the prefix and the
  // other's in the run.
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

  // Starts copying a step's queries and their log-sum-exps.
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

// The log-sum-exps of 128 queries of one head, 64 per warpgroup, with the arithmetic of
// MmaAttention (prefill_attention_mma.cuh). Keys are streamed.
template <bool kBF16, int kDims>
class Sm90QueryLogSumExps {
 public:
  using Products = Sm90Products<kBF16, kDims>;
  using Tile = typename Products::Tile;
  static constexpr size_t kSharedBytes = Products::kSharedBytes;

  // `block` counts tiles of kSm90BlockRows queries.
  __device__ Sm90QueryLogSumExps(const MmaArgs& m, HeadTile block)
      : m_(m),
        first_query_(block.tile * kSm90BlockRows),
        head_(block.head),
        kv_head_(head_ / (m.args.num_heads / m.args.num_kv_heads)),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        first_key_(m.prefix.First(kv_head_)),
        products_(DynamicShared<unsigned char>()) {
    if (m.args.sink_logits == nullptr) return;  // one of a row's four lanes counts the sink
    highest_[0] = highest_[1] = m.args.sink_logits[head_] * kLog2E;
    sum_[0] = sum_[1] = lane_ % 4 == 0 ? 1.0f : 0.0f;
  }

  __device__ void Run() {
    const PrefillAttentionArgs& args = m_.args;
    const int dims = args.head_dim, begin = first_key_ / kMmaKeys * kMmaKeys;
    const int end = min(args.first_position + first_query_ + kSm90BlockRows, m_.keys);
    products_.LoadRows(m_.q + head_ * dims, args.num_heads * dims, Query(0), args.num_queries,
                       dims);
    int loaded = begin, used = begin;
    products_.Stream(
        CeilDiv(end - begin, kSm90Columns),
        [&](int, const Tile& to) {
          to.Load(m_.k + (static_cast<size_t>(kv_head_) * m_.head_rows + loaded) * dims, dims,
                  end - loaded, dims);
          loaded += kSm90Columns;
        },
        [&](int, float(&products)[Products::kPieces][4]) {
          // Only the first tile, the last and those at the diagonal hold keys that some query of
          // the warpgroup must not see.
          if (used < first_key_ ||
              used + kSm90Columns >
                  min(args.first_position + first_query_ + WarpgroupRow() + 1, m_.keys))
            Mask(used, products);
          Add(products);
          used += kSm90Columns;
        });
    Store();
  }

 private:
  static constexpr float kLog2E = 1.4426950408889634f;

  // Query index (in the run) of this lane's elements 2 * half and the next.
  __device__ int Query(int half) const {
    return first_query_ + WarpgroupRow() + WarpRow() + lane_ / 4 + half * 8;
  }

  __device__ void Mask(int first, float (&products)[Products::kPieces][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = first + lane_ % 4 * 2;
      const int seen = m_.args.KeysSeenAt(m_.args.first_position + Query(half)) - key;
#pragma unroll
      for (int piece = 0; piece < Products::kPieces; ++piece) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (piece * 8 + i >= seen || piece * 8 + i < first_key_ - key)
            products[piece][2 * half + i] = -INFINITY;
        }
      }
    }
  }

  // Updates the running maximum and the sum relative to it.
  __device__ void Add(const float (&products)[Products::kPieces][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY;
#pragma unroll
      for (const auto& piece : products)
        top = fmaxf(top, fmaxf(piece[2 * half], piece[2 * half + 1]));
      const float highest = QuadMax(fmaxf(highest_[half], top * m_.scale));
      const float base = highest == -INFINITY ? 0.0f : highest;  // all keys so far lie ahead
      float sum = 0.0f;
#pragma unroll
      for (const auto& piece : products) {
        sum += Exp2(fmaf(piece[2 * half], m_.scale, -base));
        sum += Exp2(fmaf(piece[2 * half + 1], m_.scale, -base));
      }
      sum_[half] = sum_[half] * Exp2(highest_[half] - base) + sum;
      highest_[half] = highest;
    }
  }

  __device__ void Store() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = QuadSum(sum_[half]);
      if (lane_ % 4 == 0 && Query(half) < m_.args.num_queries)
        m_.log_sum_exp[static_cast<size_t>(head_) * m_.args.num_queries + Query(half)] =
            highest_[half] + log2f(sum);
    }
  }

  const MmaArgs& m_;
  const int first_query_, head_, kv_head_, lane_;
  const int first_key_;  // first key index of the head
  Products products_;
  float highest_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {};
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SM90_STATISTICS_CUH_
