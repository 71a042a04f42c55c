// Prefill attention on tensor cores (mma.sync, bf16 or fp16 in, fp32 sums), in FlashAttention-2's
// work order (arXiv 2307.08691, section 3.1). q, k and v are 16-bit rows; softmax is fp32, and
// weights are rounded before the product with the values.
#ifndef HYDRANT_KERNELS_CUDA_PREFILL_ATTENTION_MMA_CUH_
#define HYDRANT_KERNELS_CUDA_PREFILL_ATTENTION_MMA_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/head_tiles.cuh"
#include "kernels/cuda/key_statistics.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill_runs.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/softcap.cuh"
#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

inline constexpr int kMmaThreads = 128;
inline constexpr int kMmaWarps = kMmaThreads / kWarpSize;
inline constexpr float kMmaLog2E = 1.4426950408889634f;

// A tile of 16-bit rows in shared memory. Rows are padded by 16 bytes, which spreads eight
// rows over all banks.
template <int kDims>
struct HalfTile {
  static constexpr int kStride = kDims + 8;
  uint16_t* data;

  static constexpr int Elements(int rows) { return rows * kStride; }
  __device__ const uint16_t* At(int row, int column) const { return data + row * kStride + column; }

  // Starts copying `rows` rows; zeros past `valid` rows and `dims` columns.
  __device__ void Load(const uint16_t* from, int row_stride, int rows, int valid, int dims) const {
    constexpr int kPieces = kDims / 8;
    for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kMmaThreads) {
      const int row = i / kPieces, column = i % kPieces * 8;
      const bool exists = row < valid && column < dims;
      CopyAsync16(data + row * kStride + column, from + (exists ? row * row_stride + column : 0),
                  exists);
    }
  }

  // Fragments of Mma16816: A of rows [row, row + 16) and columns [column, column + 16) ...
  __device__ void LoadA(uint32_t (&a)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, matrix = lane / 8;
    LoadMatrices<false>(a, At(row + matrix % 2 * 8 + lane % 8, column + matrix / 2 * 8));
  }
  // ... two B with the tile's rows [row, row + 16) as columns ...
  __device__ void LoadBFromRows(uint32_t (&b)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, matrix = lane / 8;
    LoadMatrices<false>(b, At(row + matrix / 2 * 8 + lane % 8, column + matrix % 2 * 8));
  }
  // ... and two B with the tile's rows [row, row + 16) as rows.
  __device__ void LoadBFromColumns(uint32_t (&b)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, matrix = lane / 8;
    LoadMatrices<true>(b, At(row + matrix % 2 * 8 + lane % 8, column + matrix / 2 * 8));
  }
};

// Caps query-key products before the scale; `cap` in their unit.
template <int kRows, int kColumns>
__device__ void CapProducts(float cap, float (&products)[kRows][kColumns][4]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) products[row][column][i] = SoftCap(products[row][column][i], cap);
    }
  }
}

// One block: 16 * kRowTiles queries per warp, of one head. kDims: head_dim rounded up.
template <bool kBF16, int kDims, int kRowTiles>
class MmaAttention {
 public:
  static constexpr int kQueries = kMmaWarps * 16 * kRowTiles;
  static constexpr int kKeyColumns = kMmaKeys / 8, kDimColumns = kDims / 8;
  using Tile = HalfTile<kDims>;
  static constexpr size_t kSharedBytes =
      (Tile::Elements(kQueries) + 2 * Tile::Elements(kMmaKeys)) * sizeof(uint16_t);

  // `block` counts tiles of kQueries queries.
  __device__ MmaAttention(const MmaArgs& m, HeadTile block)
      : m_(m),
        q_{DynamicShared<uint16_t>()},
        k_{q_.data + Tile::Elements(kQueries)},
        v_{k_.data + Tile::Elements(kMmaKeys)},
        first_query_(block.tile * kQueries),
        head_(block.head),
        kv_head_(head_ / (m.args.num_heads / m.args.num_kv_heads)),
        warp_row_(static_cast<int>(threadIdx.x) / kWarpSize * 16 * kRowTiles),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        first_key_(m.prefix.First(kv_head_)) {
    for (auto& rows : highest_) rows[0] = rows[1] = -INFINITY;
    if (m.args.sink_logits != nullptr) StartWithSink(m.args.sink_logits[head_] * kMmaLog2E);
  }

  __device__ void Run() {
    const PrefillAttentionArgs& args = m_.args;
    const int end = min(args.first_position + first_query_ + kQueries, m_.keys);
    q_.Load(m_.q + (static_cast<size_t>(first_query_) * args.num_heads + head_) * args.head_dim,
            args.num_heads * args.head_dim, kQueries, args.num_queries - first_query_,
            args.head_dim);
    // The first tile with keys visible to any query of the block; all_seen_from: the first key that
    // lies in every query's window.
    const int first_tile =
        max(first_key_, args.FirstSeenAt(args.first_position + first_query_)) / kMmaKeys * kMmaKeys;
    const int all_seen_from = args.FirstSeenAt(args.first_position + first_query_ + kQueries - 1);
    LoadKeys(m_.k, k_, first_tile, end);
    CommitCopies();
    for (int first = first_tile; first < end; first += kMmaKeys) {
      WaitCopies<0>();
      __syncthreads();  // these keys have arrived; the previous values are no longer in use
      if (args.out != nullptr) LoadKeys(m_.v, v_, first, end);
      CommitCopies();
      float weights[kRowTiles][kKeyColumns][4] = {};
      MultiplyKeys(weights);
      if (m_.cap != 0.0f) CapProducts(m_.cap, weights);
      // Only tiles at the diagonal, at the window's lower edge, and the first and last tile hold
      // keys that some query of the block must not see.
      if (first + kMmaKeys > min(args.first_position + first_query_, end) ||
          first < max(first_key_, all_seen_from))
        Mask(first, weights);
      Softmax(weights);
      WaitCopies<0>();
      __syncthreads();  // the values have arrived; the keys are no longer in use
      if (first + kMmaKeys < end) LoadKeys(m_.k, k_, first + kMmaKeys, end);
      CommitCopies();
      if (args.out != nullptr) MultiplyValues(weights);
    }
    Store();
  }

 private:
  // A sink precedes all keys. One of a row's four lanes counts it.
  __device__ void StartWithSink(float sink) {
    for (auto& rows : highest_) rows[0] = rows[1] = sink;
    for (auto& rows : sum_) rows[0] = rows[1] = lane_ % 4 == 0 ? 1.0f : 0.0f;
  }

  // Loads keys before `end`; no query of the block sees later ones.
  __device__ void LoadKeys(const uint16_t* from, const Tile& tile, int first, int end) const {
    const int dims = m_.args.head_dim;
    tile.Load(from + (static_cast<size_t>(kv_head_) * m_.head_rows + first) * dims, dims, kMmaKeys,
              end - first, dims);
  }

  __device__ void MultiplyKeys(float (&logits)[kRowTiles][kKeyColumns][4]) const {
#pragma unroll
    for (int d = 0; d < kDims; d += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) q_.LoadA(a[r], warp_row_ + 16 * r, d);
#pragma unroll
      for (int column = 0; column < kKeyColumns; column += 2) {
        uint32_t pair[4];
        k_.LoadBFromRows(pair, column * 8, d);
        const uint32_t low[2] = {pair[0], pair[1]}, high[2] = {pair[2], pair[3]};
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Mma16816<kBF16>(logits[r][column], a[r], low);
          Mma16816<kBF16>(logits[r][column + 1], a[r], high);
        }
      }
    }
  }

  // Query index (in the run) of element i of row tile r.
  __device__ int QueryOf(int r, int i) const {
    return first_query_ + warp_row_ + 16 * r + lane_ / 4 + i / 2 * 8;
  }

  __device__ void Mask(int first, float (&logits)[kRowTiles][kKeyColumns][4]) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int column = 0; column < kKeyColumns; ++column) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first + column * 8 + lane_ % 4 * 2 + i % 2;
          const int position = m_.args.first_position + QueryOf(r, i);
          if (key >= m_.args.KeysSeenAt(position) ||
              key < max(first_key_, m_.args.FirstSeenAt(position)))
            logits[r][column][i] = -INFINITY;
        }
      }
    }
  }

  // Replaces logits by weights relative to the running maximum, and rescales
  // earlier sums if it rose.
  __device__ void Softmax(float (&weights)[kRowTiles][kKeyColumns][4]) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // rows lane / 4 and lane / 4 + 8
        float highest = highest_[r][half];
#pragma unroll
        for (int column = 0; column < kKeyColumns; ++column) {
          highest = fmaxf(highest, weights[r][column][2 * half] * m_.scale);
          highest = fmaxf(highest, weights[r][column][2 * half + 1] * m_.scale);
        }
        highest = QuadMax(highest);
        // If all keys of a row are in the future or before its window, its maximum stays -infinity
        // and its sums stay 0.
        const float base = highest == -INFINITY ? 0.0f : highest;
        const float shrink = Exp2(highest_[r][half] - base);
        highest_[r][half] = highest;
        float sum = 0.0f;
#pragma unroll
        for (int column = 0; column < kKeyColumns; ++column) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            weights[r][column][i] = Exp2(fmaf(weights[r][column][i], m_.scale, -base));
            sum += weights[r][column][i];
          }
        }
        sum_[r][half] = sum_[r][half] * shrink + sum;
#pragma unroll
        for (int column = 0; column < kDimColumns; ++column) {
          out_[r][column][2 * half] *= shrink;
          out_[r][column][2 * half + 1] *= shrink;
        }
      }
    }
  }

  __device__ void MultiplyValues(const float (&weights)[kRowTiles][kKeyColumns][4]) {
#pragma unroll
    for (int key = 0; key < kMmaKeys; key += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const auto& left = weights[r][key / 8];
        const auto& right = weights[r][key / 8 + 1];
        a[r][0] = PackHalves<kBF16>(left[0], left[1]);
        a[r][1] = PackHalves<kBF16>(left[2], left[3]);
        a[r][2] = PackHalves<kBF16>(right[0], right[1]);
        a[r][3] = PackHalves<kBF16>(right[2], right[3]);
      }
#pragma unroll
      for (int column = 0; column < kDimColumns; column += 2) {
        uint32_t pair[4];
        v_.LoadBFromColumns(pair, key, column * 8);
        const uint32_t low[2] = {pair[0], pair[1]}, high[2] = {pair[2], pair[3]};
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Mma16816<kBF16>(out_[r][column], a[r], low);
          Mma16816<kBF16>(out_[r][column + 1], a[r], high);
        }
      }
    }
  }

  __device__ void Store() {
    const PrefillAttentionArgs& args = m_.args;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = QuadSum(sum_[r][half]);
        const int query = QueryOf(r, 2 * half);
        if (query >= args.num_queries) continue;
        const size_t to = (static_cast<size_t>(query) * args.num_heads + head_) * args.head_dim;
#pragma unroll
        for (int column = 0; column < kDimColumns; ++column) {
          const int d = column * 8 + lane_ % 4 * 2;
          if (d >= args.head_dim || args.out == nullptr) continue;  // head_dim is a multiple of 8
          StorePair(args.out_dtype, args.out, to + d, out_[r][column][2 * half] / sum,
                    out_[r][column][2 * half + 1] / sum);
        }
        if (lane_ % 4 == 0 && m_.log_sum_exp != nullptr)
          m_.log_sum_exp[static_cast<size_t>(head_) * args.num_queries + query] =
              highest_[r][half] + log2f(sum);
      }
    }
  }

  const MmaArgs& m_;
  const Tile q_, k_, v_;
  const int first_query_, head_, kv_head_, warp_row_, lane_;
  const int first_key_;  // first key index of the head
  float out_[kRowTiles][kDimColumns][4] = {};
  float highest_[kRowTiles][2];
  float sum_[kRowTiles][2] = {};
};

// kCount column statistics of the same weights. A block owns 64 keys of one KV head, 16 per warp,
// with fragments kept in registers, and adds the tiles of 32 queries in order. The next head's
// queries are prefetched. With TileParts the query tiles are distributed over the grid's z. A
// statistic's result does not depend on the other statistics.
template <bool kBF16, int kDims, int kCount>
class MmaColumnStatistics {
 public:
  using Tile = HalfTile<kDims>;
  static constexpr int kQueryColumns = kQueryTile / 8;
  static constexpr size_t kSharedBytes =
      (Tile::Elements(kMmaKeys) + 2 * Tile::Elements(kQueryTile)) * sizeof(uint16_t);

  // `block` counts tiles of kMmaKeys keys.
  __device__ MmaColumnStatistics(const MmaArgs& m, const PassStatistics& statistics,
                                 const TileParts& parts, HeadTile block)
      : m_(m),
        statistics_(statistics),
        k_{DynamicShared<uint16_t>()},
        group_(m.args.num_heads / m.args.num_kv_heads),
        first_key_(block.tile * kMmaKeys),
        kv_head_(block.head),
        warp_row_(static_cast<int>(threadIdx.x) / kWarpSize * 16),
        of_keys_(m, statistics, parts, kv_head_, first_key_, warp_row_) {}

  __device__ void Run() {
    const int dims = m_.args.head_dim;
    if (first_key_ + kMmaKeys - 1 < m_.prefix.First(kv_head_)) return;
    QueryTiles all;
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      if (of_keys_.Wanted(s)) all.Add(m_.args, statistics_.of[s], first_key_);
    }
    const QueryTiles tiles = all.OfBlock(1);
    const int works = (tiles.end - tiles.first) * group_;  // (tile, head of the group) in order
    if (works <= 0) return;
    k_.Load(m_.k + (static_cast<size_t>(kv_head_) * m_.head_rows + first_key_) * dims, dims,
            kMmaKeys, m_.keys - first_key_, dims);
    LoadQueries(tiles.first, 0, Queries(0));
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();
    uint32_t keys[kDims / 16][4];
#pragma unroll
    for (int d = 0; d < kDims / 16; ++d) k_.LoadA(keys[d], warp_row_, 16 * d);
    of_keys_.LoadTotals();
    float reduced[kCount][kQueryColumns][4];
    for (int work = 0; work < works; ++work) {
      const int tile = tiles.first + work / group_, g = work % group_;
      WaitCopies<0>();
      __syncthreads();  // this tile has arrived; the previous one is no longer in use
      if (work + 1 < works)
        LoadQueries(tiles.first + (work + 1) / group_, (work + 1) % group_, Queries(work + 1));
      CommitCopies();
      float weights[1][kQueryColumns][4] = {};
      Multiply(keys, Queries(work), weights[0]);
      if (m_.cap != 0.0f) CapProducts(m_.cap, weights);
      of_keys_.ToWeights(tile, LogSumExps(tile, g), weights[0], weights[0]);
      of_keys_.Add(tile, tiles.end, g, weights[0], reduced);
    }
    of_keys_.StoreTotals();
  }

 private:
  // Double buffer. (An array indexed at run time would lie in local memory.)
  __device__ Tile Queries(int work) const {
    return {k_.data + Tile::Elements(kMmaKeys) + work % 2 * Tile::Elements(kQueryTile)};
  }

  __device__ void LoadQueries(int tile, int g, const Tile& to) const {
    const PrefillAttentionArgs& args = m_.args;
    const int first = tile * kQueryTile;
    to.Load(m_.q + (static_cast<size_t>(first) * args.num_heads + kv_head_ * group_ + g) *
                       args.head_dim,
            args.num_heads * args.head_dim, kQueryTile, args.num_queries - first, args.head_dim);
  }

  // logits^T: rows are keys, columns queries.
  __device__ void Multiply(const uint32_t (&keys)[kDims / 16][4], const Tile& q,
                           float (&logits)[kQueryColumns][4]) const {
#pragma unroll
    for (int d = 0; d < kDims / 16; ++d) {
#pragma unroll
      for (int column = 0; column < kQueryColumns; column += 2) {
        uint32_t pair[4];
        q.LoadBFromRows(pair, column * 8, 16 * d);
        const uint32_t low[2] = {pair[0], pair[1]}, high[2] = {pair[2], pair[3]};
        Mma16816<kBF16>(logits[column], keys[d], low);
        Mma16816<kBF16>(logits[column + 1], keys[d], high);
      }
    }
  }

  // Reads the log-sum-exps of a tile of queries of head g, for KeyStatistics.
  __device__ auto LogSumExps(int tile, int g) const {
    const float* mine = m_.log_sum_exp +
                        static_cast<size_t>(kv_head_ * group_ + g) * m_.args.num_queries +
                        tile * kQueryTile + threadIdx.x % 4 * 2;
    return [mine](int column) { return make_float2(mine[column * 8], mine[column * 8 + 1]); };
  }

  const MmaArgs& m_;
  const PassStatistics& statistics_;
  const Tile k_;
  const int group_, first_key_, kv_head_, warp_row_;
  KeyStatistics<kCount> of_keys_;
};

template <bool kBF16, int kDims, int kRowTiles>
__global__ void __launch_bounds__(kMmaThreads)
    MmaAttentionKernel(const __grid_constant__ MmaArgs m) {
  MmaAttention<kBF16, kDims, kRowTiles>(m, HeadTile::LastTileFirst()).Run();
}

template <bool kBF16, int kDims>
__global__ void __launch_bounds__(kMmaThreads)
    MmaBatchAttentionKernel(const __grid_constant__ MmaBatch batch) {
  HeadTile block = HeadTile::LastTileFirst();
  const MmaBatch::Run& run = batch.Find(&block.tile);
  MmaAttention<kBF16, kDims, 1>(run.m, block).Run();
}

// Three blocks per multiprocessor: four would spill.
template <bool kBF16, int kDims, int kCount>
__global__ void __launch_bounds__(kMmaThreads, kDims <= 128 && kCount > 1 ? 3 : 1)
    MmaBatchStatisticsKernel(const __grid_constant__ MmaBatch batch) {
  HeadTile block = HeadTile::FirstTileFirst();
  const MmaBatch::Run& run = batch.Find(&block.tile);
  MmaColumnStatistics<kBF16, kDims, kCount>(run.m, run.statistics, TileParts(), block).Run();
}

template <bool kBF16, int kDims, int kCount>
__global__ void __launch_bounds__(kMmaThreads)
    MmaColumnStatisticsKernel(const __grid_constant__ MmaArgs m,
                              const __grid_constant__ PassStatistics statistics,
                              const __grid_constant__ TileParts parts) {
  MmaColumnStatistics<kBF16, kDims, kCount>(m, statistics, parts, HeadTile::FirstTileFirst()).Run();
}

inline constexpr int kJoinThreads = 128;

// Adds each tile's contribution to a key, in tile order. One thread per key; grid y: KV
// heads, z: statistics.
static __global__ void __launch_bounds__(kJoinThreads)
    JoinTilesKernel(const __grid_constant__ MmaArgs m,
                    const __grid_constant__ PassStatistics statistics,
                    const __grid_constant__ TileParts parts) {
  const int key = static_cast<int>(blockIdx.x * kJoinThreads + threadIdx.x);
  const int head = static_cast<int>(blockIdx.y), s = static_cast<int>(blockIdx.z);
  if (key >= m.keys || key < m.prefix.First(head)) return;
  const ColumnStatistic& statistic = statistics.of[s];
  float* running = m.prefix.Of(statistic, head, key);
  if (running == nullptr) return;
  const int end = min(m.args.num_queries, statistic.end_query - m.args.first_position);
  const int first = FirstStatisticTile(m.args, statistic, key / kMmaKeys * kMmaKeys);
  const size_t stride = static_cast<size_t>(m.args.num_kv_heads) * m.keys;
  const float* of_key = parts.Of(s, 0, head, m.args.num_kv_heads, m.keys) + key;
  float total = *running;
#pragma unroll 8
  for (int tile = first; tile * kQueryTile < end; ++tile)
    total = Join(statistic.kind, total, of_key[tile * stride]);
  *running = total;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_PREFILL_ATTENTION_MMA_CUH_
