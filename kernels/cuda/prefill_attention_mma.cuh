// Prompt attention on tensor cores (mma.sync, bf16 or fp16 in, fp32 sums): FlashAttention-2's order
// of work (arXiv 2307.08691, section 3.1). q, k and v come as 16-bit rows; the arithmetic of
// softmax is fp32, and weights are rounded before they meet the values.
#ifndef HYDRANT_KERNELS_CUDA_PREFILL_ATTENTION_MMA_CUH_
#define HYDRANT_KERNELS_CUDA_PREFILL_ATTENTION_MMA_CUH_

#include <cuda_runtime.h>

#include <climits>

#include "kernels/cuda/column_statistic.cuh"
#include "kernels/cuda/head_tiles.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill_prefix.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/softcap.cuh"
#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

struct MmaArgs {
  PrefillAttentionArgs args;  // BehindPrefix()
  PrefixPlaces prefix;
  const uint16_t* q = nullptr;  // [num_queries, num_heads, head_dim]
  const uint16_t* k = nullptr;  // [num_kv_heads, head_rows, head_dim], the prefix first
  const uint16_t* v = nullptr;  // the same
  int head_rows = 0;
  float scale = 1.0f;  // to powers of two
  float cap = 0.0f;    // of products; 0: none
  int keys = 0;
  float* log_sum_exp = nullptr;  // [num_heads, num_queries], of powers of two; null: not wanted
};

inline constexpr int kMmaThreads = 128;
inline constexpr int kMmaWarps = kMmaThreads / kWarpSize;
inline constexpr int kMmaKeys = 64;  // keys of a tile
static_assert(kPrefixTile % kMmaKeys == 0);
inline constexpr float kMmaLog2E = 1.4426950408889634f;

// A tile of 16-bit rows in shared memory. Rows are 16 bytes longer than their elements, which
// spreads eight rows over all banks.
template <int kDims>
struct HalfTile {
  static constexpr int kStride = kDims + 8;
  uint16_t* data;

  static constexpr int Elements(int rows) { return rows * kStride; }
  __device__ const uint16_t* At(int row, int column) const { return data + row * kStride + column; }

  // Starts the copies of `rows` rows; zeros beyond `valid` rows and `dims` columns.
  __device__ void Load(const uint16_t* from, int row_stride, int rows, int valid, int dims) const {
    constexpr int kPieces = kDims / 8;
    for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kMmaThreads) {
      const int row = i / kPieces, column = i % kPieces * 8;
      const bool exists = row < valid && column < dims;
      CopyAsync16(data + row * kStride + column, from + (exists ? row * row_stride + column : 0),
                  exists);
    }
  }

  // The fragments of Mma16816: A of rows [row, row + 16) and columns [column, column + 16) ...
  __device__ void LoadA(uint32_t (&a)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, matrix = lane / 8;
    LoadMatrices<false>(a, At(row + matrix % 2 * 8 + lane % 8, column + matrix / 2 * 8));
  }
  // ... two B whose columns are the rows [row, row + 16) of the tile ...
  __device__ void LoadBFromRows(uint32_t (&b)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, matrix = lane / 8;
    LoadMatrices<false>(b, At(row + matrix / 2 * 8 + lane % 8, column + matrix % 2 * 8));
  }
  // ... and two B whose rows are the rows [row, row + 16) of the tile.
  __device__ void LoadBFromColumns(uint32_t (&b)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, matrix = lane / 8;
    LoadMatrices<true>(b, At(row + matrix % 2 * 8 + lane % 8, column + matrix / 2 * 8));
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

// Products of queries and keys, before the scale; `cap` in their unit.
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

// A block: 16 * kRowTiles queries a warp, of one head. kDims: head_dim rounded up.
template <bool kBF16, int kDims, int kRowTiles>
class MmaAttention {
 public:
  static constexpr int kQueries = kMmaWarps * 16 * kRowTiles;
  static constexpr int kKeyColumns = kMmaKeys / 8, kDimColumns = kDims / 8;
  using Tile = HalfTile<kDims>;
  static constexpr size_t kSharedBytes =
      (Tile::Elements(kQueries) + 2 * Tile::Elements(kMmaKeys)) * sizeof(uint16_t);

  // Blocks of kQueries queries.
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
    // The first tile that holds keys some query of the block sees; without a window, keys that all
    // see.
    const int first_tile =
        max(first_key_, args.FirstSeenAt(args.first_position + first_query_)) / kMmaKeys * kMmaKeys;
    const int all_seen_from = args.FirstSeenAt(args.first_position + first_query_ + kQueries - 1);
    LoadKeys(m_.k, k_, first_tile, end);
    CommitCopies();
    for (int first = first_tile; first < end; first += kMmaKeys) {
      WaitCopies<0>();
      __syncthreads();  // these keys are there, the last values are done with
      if (args.out != nullptr) LoadKeys(m_.v, v_, first, end);
      CommitCopies();
      float weights[kRowTiles][kKeyColumns][4] = {};
      MultiplyKeys(weights);
      if (m_.cap != 0.0f) CapProducts(m_.cap, weights);
      // Only tiles at the diagonal, at the other edge of a window, the last and the first hold keys
      // that some query of the block must not see.
      if (first + kMmaKeys > min(args.first_position + first_query_, end) ||
          first < max(first_key_, all_seen_from))
        Mask(first, weights);
      Softmax(weights);
      WaitCopies<0>();
      __syncthreads();  // the values are there, the keys are done with
      if (first + kMmaKeys < end) LoadKeys(m_.k, k_, first + kMmaKeys, end);
      CommitCopies();
      if (args.out != nullptr) MultiplyValues(weights);
    }
    Store();
  }

 private:
  // A sink comes before all keys. Of a row's four lanes one counts it.
  __device__ void StartWithSink(float sink) {
    for (auto& rows : highest_) rows[0] = rows[1] = sink;
    for (auto& rows : sum_) rows[0] = rows[1] = lane_ % 4 == 0 ? 1.0f : 0.0f;
  }

  // Those before `end`; no query of the block sees more.
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

  // The query (of the run) of element i of row tile r.
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

  // Logits become weights relative to the running maximum; sums so far shrink where that rose.
  __device__ void Softmax(float (&weights)[kRowTiles][kKeyColumns][4]) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // rows lane / 4 and 8 below
        float highest = highest_[r][half];
#pragma unroll
        for (int column = 0; column < kKeyColumns; ++column) {
          highest = fmaxf(highest, weights[r][column][2 * half] * m_.scale);
          highest = fmaxf(highest, weights[r][column][2 * half + 1] * m_.scale);
        }
        highest = QuadMax(highest);
        // A row whose keys all lie ahead, or before its window, keeps its maximum of -infinity and
        // its sums of 0.
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
  const int first_key_;  // of all that the head has
  float out_[kRowTiles][kDimColumns][4] = {};
  float highest_[kRowTiles][2];
  float sum_[kRowTiles][2] = {};
};

// The statistics of one pass.
struct PassStatistics {
  ColumnStatistic of[kMaxColumnStatistics];
  int count = 0;
};

// Where a statistic's blocks leave what each tile of queries gives, to be added in the tiles' order
// afterwards, so that several blocks can work on the same keys.
struct TileParts {
  float* data = nullptr;  // [statistics, tiles of kQueryTile queries, num_kv_heads, keys]; null:
                          // one block adds
  int tiles = 0;

  __device__ float* Of(int statistic, int tile, int kv_head, int num_kv_heads, int keys) const {
    return data + ((static_cast<size_t>(statistic) * tiles + tile) * num_kv_heads + kv_head) * keys;
  }
};

// The first tile of the run that holds queries which count, and see a key of a block of keys.
__host__ __device__ constexpr int FirstStatisticTile(const PrefillAttentionArgs& args,
                                                     const ColumnStatistic& statistic,
                                                     int first_key) {
  const int first = first_key > statistic.first_query ? first_key : statistic.first_query;
  return first > args.first_position ? (first - args.first_position) / kQueryTile : 0;
}

// kCount column statistics of the same weights: a block owns 64 keys of one KV head, 16 a warp,
// whose fragments stay in registers, and adds the tiles of 32 queries in their order. The next
// head's queries are on their way while one is worked on. With TileParts the tiles are dealt to the
// grid's z. What a statistic gets does not depend on those beside it.
template <bool kBF16, int kDims, int kCount>
class MmaColumnStatistics {
 public:
  using Tile = HalfTile<kDims>;
  static constexpr int kQueryColumns = kQueryTile / 8;
  static constexpr size_t kSharedBytes =
      (Tile::Elements(kMmaKeys) + 2 * Tile::Elements(kQueryTile)) * sizeof(uint16_t);

  // Blocks of kMmaKeys keys.
  __device__ MmaColumnStatistics(const MmaArgs& m, const PassStatistics& statistics,
                                 const TileParts& parts, HeadTile block)
      : m_(m),
        statistics_(statistics),
        parts_(parts),
        k_{DynamicShared<uint16_t>()},
        group_(m.args.num_heads / m.args.num_kv_heads),
        first_key_(block.tile * kMmaKeys),
        kv_head_(block.head),
        first_of_head_(m.prefix.First(kv_head_)),
        warp_row_(static_cast<int>(threadIdx.x) / kWarpSize * 16),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize) {}

  __device__ void Run() {
    const PrefillAttentionArgs& args = m_.args;
    const int dims = args.head_dim;
    if (first_key_ + kMmaKeys - 1 < first_of_head_) return;
    int first_of_all = INT_MAX, all_tiles = 0;
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      if (!Wanted(s)) continue;
      first_of_all = min(first_of_all, FirstStatisticTile(args, statistics_.of[s], first_key_));
      all_tiles = max(all_tiles, CeilDiv(EndQuery(s), kQueryTile));
    }
    if (first_of_all >= all_tiles) return;
    // This block's share of the tiles.
    const int share = CeilDiv(all_tiles - first_of_all, static_cast<int>(gridDim.z));
    const int first_tile = first_of_all + static_cast<int>(blockIdx.z) * share;
    const int tiles = min(first_tile + share, all_tiles);
    const int works = (tiles - first_tile) * group_;  // (tile, head of the group) in order
    if (works <= 0) return;
    k_.Load(m_.k + (static_cast<size_t>(kv_head_) * m_.head_rows + first_key_) * dims, dims,
            kMmaKeys, m_.keys - first_key_, dims);
    LoadQueries(first_tile, 0, Queries(0));
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();
    uint32_t keys[kDims / 16][4];
#pragma unroll
    for (int d = 0; d < kDims / 16; ++d) k_.LoadA(keys[d], warp_row_, 16 * d);
    float total[kCount][2];
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      total[s][0] = Running(s, 0);
      total[s][1] = Running(s, 1);
    }
    float reduced[kCount][kQueryColumns][4];
    for (int work = 0; work < works; ++work) {
      const int tile = first_tile + work / group_, g = work % group_;
      WaitCopies<0>();
      __syncthreads();  // this tile is there, the one before is done with
      if (work + 1 < works)
        LoadQueries(first_tile + (work + 1) / group_, (work + 1) % group_, Queries(work + 1));
      CommitCopies();
      float weights[1][kQueryColumns][4] = {};
      Multiply(keys, Queries(work), weights[0]);
      if (m_.cap != 0.0f) CapProducts(m_.cap, weights);
      if (AllSeen(tile)) {
        ToWeights<true>(tile, g, weights[0]);
      } else {
        ToWeights<false>(tile, g, weights[0]);
      }
#pragma unroll
      for (int s = 0; s < kCount; ++s) {
        if (AllCount(s, tile)) {
          Reduce<true>(s, tile, g, weights[0], reduced[s]);
        } else {
          Reduce<false>(s, tile, g, weights[0], reduced[s]);
        }
        if (g + 1 == group_) AddTile(s, tile, reduced[s], total[s]);
      }
    }
    if (parts_.data != nullptr || lane_ % 4 != 0) return;
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      for (int half = 0; half < 2; ++half) {
        if (Wanted(s) && Exists(half)) *RunningAt(s, half) = total[s][half];
      }
    }
  }

 private:
  // Two tiles take turns. (An array of them, indexed at run time, would lie in local memory.)
  __device__ Tile Queries(int work) const {
    return {k_.data + Tile::Elements(kMmaKeys) + work % 2 * Tile::Elements(kQueryTile)};
  }
  __device__ int Key(int half) const { return first_key_ + warp_row_ + lane_ / 4 + half * 8; }
  __device__ bool Exists(int half) const {
    return Key(half) >= first_of_head_ && Key(half) < m_.keys;
  }
  // Whether statistic s has a place for the block's keys. They are all of the prefix or of the run.
  __device__ bool Wanted(int s) const {
    return m_.prefix.Of(statistics_.of[s], kv_head_, first_key_ + kMmaKeys - 1) != nullptr;
  }
  __device__ float* RunningAt(int s, int half) const {
    return m_.prefix.Of(statistics_.of[s], kv_head_, Key(half));
  }
  __device__ float Running(int s, int half) const {
    return Wanted(s) && Exists(half) ? *RunningAt(s, half) : 0.0f;
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

  // Of the run, the first that a statistic leaves out.
  __device__ int EndQuery(int s) const {
    return min(m_.args.num_queries, statistics_.of[s].end_query - m_.args.first_position);
  }
  // The query (of the run) of element i of a column of a tile.
  __device__ int QueryOf(int tile, int column, int i) const {
    return tile * kQueryTile + column * 8 + lane_ % 4 * 2 + i % 2;
  }
  // Whether there is such a query, and it sees the key of element i.
  __device__ bool Seen(int query, int i) const {
    return query < m_.args.num_queries && Key(i / 2) <= m_.args.first_position + query;
  }
  __device__ bool Counts(int s, int query) const {
    return query < EndQuery(s) && m_.args.first_position + query >= statistics_.of[s].first_query;
  }

  // Whether all queries of a tile are there, and see all keys of the block.
  __device__ bool AllSeen(int tile) const {
    return (tile + 1) * kQueryTile <= m_.args.num_queries &&
           m_.args.first_position + tile * kQueryTile >= first_key_ + kMmaKeys - 1;
  }
  // Whether they all count for a statistic.
  __device__ bool AllCount(int s, int tile) const {
    return (tile + 1) * kQueryTile <= EndQuery(s) &&
           m_.args.first_position + tile * kQueryTile >= statistics_.of[s].first_query;
  }

  template <bool kAllSeen>
  __device__ void ToWeights(int tile, int g, float (&weights)[kQueryColumns][4]) const {
    const float* lse =
        m_.log_sum_exp + static_cast<size_t>(kv_head_ * group_ + g) * m_.args.num_queries;
#pragma unroll
    for (int column = 0; column < kQueryColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = QueryOf(tile, column, i);
        weights[column][i] = kAllSeen || Seen(query, i)
                                 ? Exp2(fmaf(weights[column][i], m_.scale, -lse[query]))
                                 : 0.0f;
      }
    }
  }

  template <bool kAllCount>
  __device__ void Reduce(int s, int tile, int g, const float (&weights)[kQueryColumns][4],
                         float (&reduced)[kQueryColumns][4]) const {
#pragma unroll
    for (int column = 0; column < kQueryColumns; ++column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float before = g == 0 ? 0.0f : reduced[column][i];
        const bool counts = kAllCount || Counts(s, QueryOf(tile, column, i));
        reduced[column][i] =
            AddHead(statistics_.of[s].reduce, counts ? weights[column][i] : 0.0f, before);
      }
    }
  }

  __device__ void AddTile(int s, int tile, const float (&reduced)[kQueryColumns][4],
                          float (&total)[2]) const {
    const ColumnStatistic& statistic = statistics_.of[s];
    const float share = ShareOf(statistic.reduce, group_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of_tile = 0.0f;
#pragma unroll
      for (int column = 0; column < kQueryColumns; ++column) {
        const float* pair = reduced[column] + 2 * half;
        if (statistic.kind == ColumnStatistic::Kind::kSum) {
          of_tile += pair[0] + pair[1];
        } else if (statistic.kind == ColumnStatistic::Kind::kMax) {
          of_tile = fmaxf(of_tile, fmaxf(pair[0], pair[1]));
        } else {
          of_tile += BelowMean(s, tile, column, 2 * half, pair[0] * share) +
                     BelowMean(s, tile, column, 2 * half + 1, pair[1] * share);
        }
      }
      of_tile = statistic.kind == ColumnStatistic::Kind::kMax ? QuadMax(of_tile) : QuadSum(of_tile);
      if (statistic.kind != ColumnStatistic::Kind::kBelowMean) of_tile *= share;
      if (parts_.data == nullptr) {
        total[half] = Join(statistic.kind, total[half], of_tile);
      } else if (lane_ % 4 == 0 && Exists(half)) {
        parts_.Of(s, tile, kv_head_, m_.args.num_kv_heads, m_.keys)[Key(half)] = of_tile;
      }
    }
  }

  __device__ float BelowMean(int s, int tile, int column, int i, float weight) const {
    const int query = QueryOf(tile, column, i);
    return Contribution(ColumnStatistic::Kind::kBelowMean, weight,
                        Seen(query, i) && Counts(s, query),
                        m_.args.KeysSeenAt(m_.args.first_position + query) - first_of_head_);
  }

  const MmaArgs& m_;
  const PassStatistics& statistics_;
  const TileParts& parts_;
  const Tile k_;
  const int group_, first_key_, kv_head_, first_of_head_, warp_row_, lane_;
};

template <bool kBF16, int kDims, int kRowTiles>
__global__ void __launch_bounds__(kMmaThreads)
    MmaAttentionKernel(const __grid_constant__ MmaArgs m) {
  MmaAttention<kBF16, kDims, kRowTiles>(m, HeadTile::LastTileFirst()).Run();
}

// Runs of several prompts in one grid. Tiles are counted through all of them.
inline constexpr int kMaxBatch = 32;

struct MmaBatch {
  struct Run {
    MmaArgs m;
    PassStatistics statistics;
    int first_tile = 0;
  };
  Run runs[kMaxBatch];
  int count = 0;
  int tiles = 0;  // of all runs

  // The run of a tile, and which of the run's tiles it is.
  __device__ const Run& Find(int* tile) const {
    int run = count - 1;
    while (runs[run].first_tile > *tile) --run;
    *tile -= runs[run].first_tile;
    return runs[run];
  }
};

static_assert(sizeof(MmaBatch) <= 32764, "what a kernel's parameters may take");

template <bool kBF16, int kDims>
__global__ void __launch_bounds__(kMmaThreads)
    MmaBatchAttentionKernel(const __grid_constant__ MmaBatch batch) {
  HeadTile block = HeadTile::LastTileFirst();
  const MmaBatch::Run& run = batch.Find(&block.tile);
  MmaAttention<kBF16, kDims, 1>(run.m, block).Run();
}

// Three blocks a multiprocessor: four would spill.
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

// Adds what each tile gives to a key, in the tiles' order. A thread per key; blocks along y over
// the KV heads, along z over the statistics.
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
