// Computes column statistics from key-query products in a warp's registers: makes attention
// weights, reduces them over the heads of a group, and accumulates them over tiles of queries. For
// tensor-core kernels.
#ifndef HYDRANT_KERNELS_CUDA_KEY_STATISTICS_CUH_
#define HYDRANT_KERNELS_CUDA_KEY_STATISTICS_CUH_

#include <cuda_runtime.h>

#include <climits>

#include "kernels/cuda/column_statistic.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill_runs.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

// The run's first tile with queries that count and see a key of a block of keys.
__host__ __device__ constexpr int FirstStatisticTile(const PrefillAttentionArgs& args,
                                                     const ColumnStatistic& statistic,
                                                     int first_key) {
  const int first = first_key > statistic.first_query ? first_key : statistic.first_query;
  return first > args.first_position ? (first - args.first_position) / kQueryTile : 0;
}

// The run's first query past the statistic's range.
__device__ inline int EndQuery(const PrefillAttentionArgs& args, const ColumnStatistic& statistic) {
  return min(args.num_queries, statistic.end_query - args.first_position);
}

// A range of a run's query tiles.
struct QueryTiles {
  int first = INT_MAX, end = 0;

  // Extends the range to the tiles that a statistic needs for the keys from `first_key` on.
  __device__ void Add(const PrefillAttentionArgs& args, const ColumnStatistic& statistic,
                      int first_key) {
    first = min(first, FirstStatisticTile(args, statistic, first_key));
    end = max(end, CeilDiv(EndQuery(args, statistic), kQueryTile));
  }
  // This block's share of the range among gridDim.z blocks; a multiple of `unit`,
  // except for the last.
  __device__ QueryTiles OfBlock(int unit) const {
    if (first >= end) return {0, 0};
    const int share = CeilDiv(end - first, static_cast<int>(gridDim.z) * unit) * unit;
    const int begin = first + static_cast<int>(blockIdx.z) * share;
    return {begin, min(begin + share, end)};
  }
};

__device__ inline float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}
__device__ inline float QuadSum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// kCount statistics of a warp's 16 keys. Products and weights are D fragments of Mma16816
// (ptx.cuh): rows are keys, columns queries, in whole tiles of kQueryTile.
template <int kCount>
class KeyStatistics {
 public:
  // The warp's first key is row `row` of the kMmaKeys keys that begin at first_key.
  __device__ KeyStatistics(const MmaArgs& m, const PassStatistics& statistics,
                           const TileParts& parts, int kv_head, int first_key, int row)
      : m_(m),
        statistics_(statistics),
        parts_(parts),
        kv_head_(kv_head),
        group_(m.args.num_heads / m.args.num_kv_heads),
        first_key_(first_key),
        first_of_head_(m.prefix.First(kv_head)),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        key_(first_key + row + lane_ / 4) {}

  // Whether statistic s has an output for these keys.
  __device__ bool Wanted(int s) const {
    return m_.prefix.Of(statistics_.of[s], kv_head_, first_key_ + kMmaKeys - 1) != nullptr;
  }
  __device__ void LoadTotals() {
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        total_[s][half] = Wanted(s) && Exists(half) ? *RunningAt(s, half) : 0.0f;
    }
  }
  // Used when there are no parts.
  __device__ void StoreTotals() const {
    if (parts_.data != nullptr || lane_ % 4 != 0) return;
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (Wanted(s) && Exists(half)) *RunningAt(s, half) = total_[s][half];
      }
    }
  }

  // lse(j): the log-sum-exps of this lane's two queries in columns 8 j.
  template <int kColumns, typename LogSumExps>
  __device__ void ToWeights(int tile, const LogSumExps& lse, const float (&products)[kColumns][4],
                            float (&weights)[kColumns][4]) const {
    if (AllSeen<kColumns>(tile)) {
      ToWeights<true>(tile, lse, products, weights);
    } else {
      ToWeights<false>(tile, lse, products, weights);
    }
  }
  // Adds the weights of the g-th head of the group; after the last head, adds the group's
  // contribution. Tiles from `end` on are skipped.
  template <int kColumns>
  __device__ void Add(int tile, int end, int g, const float (&weights)[kColumns][4],
                      float (&reduced)[kCount][kColumns][4]) {
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      if (g == 0) {
#pragma unroll
        for (auto& column : reduced[s]) column[0] = column[1] = column[2] = column[3] = 0.0f;
      }
      Reduce(s, tile, weights, reduced[s]);
      if (g + 1 < group_) continue;
#pragma unroll
      for (int t = 0; t < kColumns / kTileColumns; ++t) {
        if (tile + t < end) AddTile(s, tile + t, reduced[s] + t * kTileColumns);
      }
    }
  }

 private:
  static constexpr int kTileColumns = kQueryTile / 8;

  __device__ int Key(int half) const { return key_ + half * 8; }
  __device__ bool Exists(int half) const {
    return Key(half) >= first_of_head_ && Key(half) < m_.keys;
  }
  __device__ float* RunningAt(int s, int half) const {
    return m_.prefix.Of(statistics_.of[s], kv_head_, Key(half));
  }

  // The query (in the run) of this lane's first element of a tile; element i of a column is
  // ColumnOf() later. Conditions are expressed as bounds on that constant, which costs one register
  // per bound instead of one per element.
  __device__ int FirstQuery(int tile) const { return tile * kQueryTile + lane_ % 4 * 2; }
  __device__ static constexpr int ColumnOf(int column, int i) { return column * 8 + i % 2; }

  struct Columns {
    int first, end;
    __device__ bool Hold(int column) const { return column >= first && column < end; }
  };
  // The columns of queries that exist and see the key.
  __device__ Columns Seen(int tile, int half) const {
    const int query = FirstQuery(tile);
    return {Key(half) - m_.args.first_position - query, m_.args.num_queries - query};
  }
  // The columns of queries that statistic s counts.
  __device__ Columns Counting(int s, int tile) const {
    const ColumnStatistic& statistic = statistics_.of[s];
    const int query = FirstQuery(tile);
    return {statistic.first_query - m_.args.first_position - query,
            EndQuery(m_.args, statistic) - query};
  }

  // Whether kColumns * 8 queries exist and all see the kMmaKeys keys.
  template <int kColumns>
  __device__ bool AllSeen(int tile) const {
    return tile * kQueryTile + kColumns * 8 <= m_.args.num_queries &&
           m_.args.first_position + tile * kQueryTile >= first_key_ + kMmaKeys - 1;
  }
  // Whether they all count for a statistic.
  template <int kColumns>
  __device__ bool AllCount(int s, int tile) const {
    return tile * kQueryTile + kColumns * 8 <= EndQuery(m_.args, statistics_.of[s]) &&
           m_.args.first_position + tile * kQueryTile >= statistics_.of[s].first_query;
  }

  template <bool kAllSeen, int kColumns, typename LogSumExps>
  __device__ void ToWeights(int tile, const LogSumExps& lse, const float (&products)[kColumns][4],
                            float (&weights)[kColumns][4]) const {
    const Columns seen[2] = {Seen(tile, 0), Seen(tile, 1)};
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const float2 of = lse(column);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = Exp2(fmaf(products[column][i], m_.scale, -(i % 2 == 0 ? of.x : of.y)));
        weights[column][i] = kAllSeen || seen[i / 2].Hold(ColumnOf(column, i)) ? weight : 0.0f;
      }
    }
  }

  // Adds a head's weights to the group's. The reduction is selected once for all weights.
  template <int kColumns>
  __device__ void Reduce(int s, int tile, const float (&weights)[kColumns][4],
                         float (&reduced)[kColumns][4]) const {
    if (!AllCount<kColumns>(s, tile)) {
      ReduceSome(s, tile, weights, reduced);
    } else if (statistics_.of[s].reduce == GroupReduce::kMax) {
      ReduceAll<GroupReduce::kMax>(weights, reduced);
    } else if (statistics_.of[s].reduce == GroupReduce::kSumOfSquares) {
      ReduceAll<GroupReduce::kSumOfSquares>(weights, reduced);
    } else {
      ReduceAll<GroupReduce::kMean>(weights, reduced);
    }
  }
  template <GroupReduce kReduce, int kColumns>
  __device__ static void ReduceAll(const float (&weights)[kColumns][4],
                                   float (&reduced)[kColumns][4]) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        reduced[column][i] = AddHead(kReduce, weights[column][i], reduced[column][i]);
    }
  }
  // Adds the queries that count.
  template <int kColumns>
  __device__ void ReduceSome(int s, int tile, const float (&weights)[kColumns][4],
                             float (&reduced)[kColumns][4]) const {
    const Columns counting = Counting(s, tile);
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = counting.Hold(ColumnOf(column, i)) ? weights[column][i] : 0.0f;
        reduced[column][i] = AddHead(statistics_.of[s].reduce, weight, reduced[column][i]);
      }
    }
  }

  __device__ void AddTile(int s, int tile, const float (*reduced)[4]) {
    const ColumnStatistic& statistic = statistics_.of[s];
    const float share = ShareOf(statistic.reduce, group_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of_tile = 0.0f;
#pragma unroll
      for (int column = 0; column < kTileColumns; ++column) {
        const float* pair = reduced[column] + 2 * half;
        if (statistic.kind == ColumnStatistic::Kind::kSum) {
          of_tile += pair[0] + pair[1];
        } else if (statistic.kind == ColumnStatistic::Kind::kMax) {
          of_tile = fmaxf(of_tile, fmaxf(pair[0], pair[1]));
        }
      }
      if (statistic.kind == ColumnStatistic::Kind::kBelowMean)
        of_tile = BelowMean(s, tile, half, share, reduced);
      of_tile = statistic.kind == ColumnStatistic::Kind::kMax ? QuadMax(of_tile) : QuadSum(of_tile);
      if (statistic.kind != ColumnStatistic::Kind::kBelowMean) of_tile *= share;
      if (parts_.data == nullptr) {
        total_[s][half] = Join(statistic.kind, total_[s][half], of_tile);
      } else if (lane_ % 4 == 0 && Exists(half)) {
        parts_.Of(s, tile, kv_head_, m_.args.num_kv_heads, m_.keys)[Key(half)] = of_tile;
      }
    }
  }

  // Number of this lane's weights of a tile below the mean.
  __device__ float BelowMean(int s, int tile, int half, float share,
                             const float (*reduced)[4]) const {
    const Columns seen = Seen(tile, half), counting = Counting(s, tile);
    const int position = m_.args.first_position + FirstQuery(tile);
    float count = 0.0f;
#pragma unroll
    for (int column = 0; column < kTileColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = ColumnOf(column, i);
        count += Contribution(
            ColumnStatistic::Kind::kBelowMean, reduced[column][2 * half + i] * share,
            seen.Hold(at) && counting.Hold(at), m_.args.KeysSeenAt(position + at) - first_of_head_);
      }
    }
    return count;
  }

  const MmaArgs& m_;
  const PassStatistics& statistics_;
  const TileParts& parts_;
  const int kv_head_, group_, first_key_, first_of_head_, lane_;
  const int key_;  // first key of this lane
  float total_[kCount][2];
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_KEY_STATISTICS_CUH_
