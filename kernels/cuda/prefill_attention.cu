// Prefill attention: on tensor cores with 16-bit operands (prefill_attention_mma.cuh) if the caller
// allows it, otherwise in fp32 as follows. A block processes one tile of queries of one head, over
// all key tiles in order, with a running maximum and sum (FlashAttention, arXiv 2205.14135, section
// 3.1). Column statistics take separate passes (one each; on tensor cores one for all) that
// recompute the weights from each query's log-sum-exp: a block owns a tile of keys and adds the
// query tiles in order, so that results are bit-identical for any slicing of the prompt.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/column_statistic.cuh"
#include "kernels/cuda/head_tiles.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/prefill_attention_mma.cuh"
#include "kernels/cuda/prefill_prefix.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sm90_attention.h"
#include "kernels/cuda/sm90_statistics.h"
#include "kernels/cuda/softcap.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeyTile = 32;
constexpr int kRowThreads = kThreads / kQueryTile;  // threads per query
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kPastLogit = -1e30f;  // for keys before the window: below all others, finite
static_assert(kQueryTile == 32 && kKeyTile == 32 && kPrefixTile % kKeyTile == 0);

// A thread's keys in a tile: column + kRowThreads * j.
constexpr int kKeysOfThread = kKeyTile / kRowThreads;

struct ExactArgs {
  PrefillAttentionArgs args;  // BehindPrefix()
  PrefixPlaces prefix;
  const float* prefix_k = nullptr;  // [num_kv_heads, places, head_dim]
  const float* prefix_v = nullptr;  // the same
  float* log_sum_exp = nullptr;     // [num_heads, num_queries], base 2; null: not written
};

struct Tiles {
  float* q;    // [kQueryTile, stride], scaled so that logits are base 2
  float* k;    // [kKeyTile, stride]
  float* v;    // [kKeyTile, stride]
  float* p;    // [kQueryTile, kKeyTile + 1]
  int stride;  // odd, so that a column's elements lie in different banks

  __device__ Tiles(float* memory, int head_dim) : q(memory), stride(head_dim + 1 - head_dim % 2) {
    k = q + kQueryTile * stride;
    v = k + kKeyTile * stride;
    p = v + kKeyTile * stride;
  }
  static size_t Bytes(int head_dim) {
    const size_t stride = head_dim + 1 - head_dim % 2;
    return (stride * (kQueryTile + 2 * kKeyTile) + kQueryTile * (kKeyTile + 1)) * sizeof(float);
  }
};

// Loads rows x head_dim floats, `row_stride` apart, into a tile; missing rows are zeros.
__device__ void LoadTile(const float* from, int64_t row_stride, int rows, int head_dim, float scale,
                         int stride, float* tile) {
  for (int i = static_cast<int>(threadIdx.x); i < 32 * head_dim; i += kThreads) {
    const int row = i / head_dim, d = i % head_dim;
    tile[row * stride + d] = row < rows ? from[row * row_stride + d] * scale : 0.0f;
  }
}

__device__ void LoadQueries(const PrefillAttentionArgs& args, int tile, int head,
                            const Tiles& tiles) {
  const int first = tile * kQueryTile;
  LoadTile(args.q.f32() + (static_cast<size_t>(first) * args.num_heads + head) * args.head_dim,
           static_cast<int64_t>(args.num_heads) * args.head_dim,
           min(kQueryTile, args.num_queries - first), args.head_dim, args.scale * kLog2E,
           tiles.stride, tiles.q);
}

// Loads a tile of keys or values: all from the prefix or all from the run.
__device__ void LoadKeys(const ExactArgs& exact, const float* prefix, const ArenaRows& run,
                         int kv_head, int first, int stride, float* tile) {
  const PrefillAttentionArgs& args = exact.args;
  const int places = exact.prefix.places, d = args.head_dim;
  const int keys = args.NumKeys();
  const float* from = first < places
                          ? prefix + (static_cast<int64_t>(kv_head) * places + first) * d
                          : run.f32() + kv_head * args.kv_head_stride + int64_t{first - places} * d;
  LoadTile(from, d, min(kKeyTile, keys - first), d, 1.0f, stride, tile);
}

// The logits of this thread's query with the keys of the tile at `first_key`; -infinity outside
// [begin, last_key], kPastLogit before `first_seen`.
__device__ void Logits(const PrefillAttentionArgs& args, const Tiles& tiles, int begin,
                       int first_seen, int last_key, int first_key,
                       float (&logits)[kKeysOfThread]) {
  const int row = static_cast<int>(threadIdx.x) / kRowThreads;
  const int column = static_cast<int>(threadIdx.x) % kRowThreads;
#pragma unroll
  for (int j = 0; j < kKeysOfThread; ++j) {
    const int key = column + kRowThreads * j;
    float sum = 0.0f;
    for (int d = 0; d < args.head_dim; ++d)
      sum = fmaf(tiles.q[row * tiles.stride + d], tiles.k[key * tiles.stride + d], sum);
    if (args.softcap != 0.0f) sum = SoftCap(sum, args.softcap * kLog2E);
    logits[j] = first_key + key >= begin && first_key + key <= last_key ? sum : -INFINITY;
    if (first_key + key < first_seen) logits[j] = kPastLogit;
  }
}

template <typename Combine>
__device__ float OverRow(float value, Combine combine) {
  for (int mask = kRowThreads / 2; mask > 0; mask /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, mask));
  return value;
}

// kDims: upper bound of head_dim. Writes the base-2 log-sum-exp of each (head, query).
template <int kDims>
__global__ void __launch_bounds__(kThreads) AttendKernel(const __grid_constant__ ExactArgs exact) {
  const PrefillAttentionArgs& args = exact.args;
  const Tiles tiles(DynamicShared<float>(), args.head_dim);
  const auto [tile, head] = HeadTile::LastTileFirst();
  const int kv_head = head / (args.num_heads / args.num_kv_heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kRowThreads, column = thread % kRowThreads;
  const int query = tile * kQueryTile + row;
  const int begin = exact.prefix.First(kv_head);
  const int first_seen = args.FirstSeenAt(args.first_position + query);
  const int last_key = args.KeysSeenAt(args.first_position + query) - 1;
  const int first_of_tile = max(begin, args.FirstSeenAt(args.first_position + tile * kQueryTile));
  const int end = min(args.first_position + (tile + 1) * kQueryTile, args.NumKeys());
  LoadQueries(args, tile, head, tiles);

  constexpr int kDimsOfThread = kDims / kRowThreads;
  float out[kDimsOfThread] = {};
  float highest = -INFINITY, sum = 0.0f;
  if (args.sink_logits != nullptr) {  // counted before all keys
    highest = args.sink_logits[head] * kLog2E;
    sum = 1.0f;
  }
  for (int first = first_of_tile / kKeyTile * kKeyTile; first < end; first += kKeyTile) {
    __syncthreads();
    LoadKeys(exact, exact.prefix_k, args.k, kv_head, first, tiles.stride, tiles.k);
    if (args.out != nullptr)
      LoadKeys(exact, exact.prefix_v, args.v, kv_head, first, tiles.stride, tiles.v);
    __syncthreads();
    float weights[kKeysOfThread];
    Logits(args, tiles, begin, first_seen, last_key, first, weights);
    float tile_highest = -INFINITY;
    for (float logit : weights) tile_highest = fmaxf(tile_highest, logit);
    tile_highest = OverRow(tile_highest, [](float a, float b) { return fmaxf(a, b); });
    // Every query sees the head's first key, or the key lies before its window, so the first
    // tile makes `highest` finite. Sums from before the first visible key are cancelled by that
    // key's `shrink` of 0.
    const float higher = fmaxf(highest, tile_highest);
    const float shrink = Exp2(highest - higher);
    highest = higher;
    float tile_sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kKeysOfThread; ++j) {
      weights[j] = Exp2(weights[j] - highest);
      tile_sum += weights[j];
      tiles.p[row * (kKeyTile + 1) + column + kRowThreads * j] = weights[j];
    }
    sum = sum * shrink + OverRow(tile_sum, [](float a, float b) { return a + b; });
    __syncwarp();  // a row's threads share a warp
#pragma unroll
    for (int i = 0; i < kDimsOfThread; ++i) {
      const int d = column + kRowThreads * i;
      if (d >= args.head_dim || args.out == nullptr) continue;
      float total = 0.0f;
      for (int key = 0; key < kKeyTile; ++key)
        total = fmaf(tiles.p[row * (kKeyTile + 1) + key], tiles.v[key * tiles.stride + d], total);
      out[i] = out[i] * shrink + total;
    }
  }
  if (query >= args.num_queries) return;
  const size_t to = (static_cast<size_t>(query) * args.num_heads + head) * args.head_dim;
#pragma unroll
  for (int i = 0; i < kDimsOfThread; ++i) {
    const int d = column + kRowThreads * i;
    if (d < args.head_dim && args.out != nullptr)
      StoreElement(args.out_dtype, args.out, to + d, out[i] / sum);
  }
  if (column == 0 && exact.log_sum_exp != nullptr)
    exact.log_sum_exp[static_cast<size_t>(head) * args.num_queries + query] = highest + log2f(sum);
}

__global__ void __launch_bounds__(kThreads)
    ColumnStatisticKernel(const __grid_constant__ ExactArgs exact,
                          const __grid_constant__ ColumnStatistic statistic) {
  const PrefillAttentionArgs& args = exact.args;
  const Tiles tiles(DynamicShared<float>(), args.head_dim);
  const auto [key_tile, kv_head] = HeadTile::FirstTileFirst();
  const int first_key = key_tile * kKeyTile;
  const int group = args.num_heads / args.num_kv_heads;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kRowThreads, column = thread % kRowThreads;
  const int begin = exact.prefix.First(kv_head), keys = args.NumKeys();
  const int last_key = first_key + kKeyTile - 1;
  if (last_key < begin || exact.prefix.Of(statistic, kv_head, last_key) == nullptr) return;
  LoadKeys(exact, exact.prefix_k, args.k, kv_head, first_key, tiles.stride, tiles.k);
  const int key = first_key + thread;
  const bool owns_key = thread < kKeyTile && key >= begin && key < keys;
  float* running = owns_key ? exact.prefix.Of(statistic, kv_head, key) : nullptr;
  float total = owns_key ? *running : 0.0f;
  const int first_tile =
      max(0, (max(first_key, statistic.first_query) - args.first_position) / kQueryTile);
  const int end_query = min(args.num_queries, statistic.end_query - args.first_position);
  for (int tile = first_tile; tile * kQueryTile < end_query; ++tile) {
    const int query = tile * kQueryTile + row;
    const int position = args.first_position + query;
    const bool counts = query < end_query && position >= statistic.first_query;
    float reduced[kKeysOfThread] = {};
    for (int g = 0; g < group; ++g) {
      const int head = kv_head * group + g;
      __syncthreads();
      LoadQueries(args, tile, head, tiles);
      __syncthreads();
      float weights[kKeysOfThread];
      Logits(args, tiles, begin, 0, position, first_key, weights);
      const float lse =
          counts ? exact.log_sum_exp[static_cast<size_t>(head) * args.num_queries + query] : 0.0f;
#pragma unroll
      for (int j = 0; j < kKeysOfThread; ++j)
        reduced[j] = AddHead(statistic.reduce, counts ? Exp2(weights[j] - lse) : 0.0f, reduced[j]);
    }
    const float share = ShareOf(statistic.reduce, group);
#pragma unroll
    for (int j = 0; j < kKeysOfThread; ++j) {
      const int key_of_thread = first_key + column + kRowThreads * j;
      const bool seen = counts && key_of_thread >= begin && key_of_thread <= position;
      tiles.p[row * (kKeyTile + 1) + column + kRowThreads * j] =
          Contribution(statistic.kind, reduced[j] * share, seen, args.KeysSeenAt(position) - begin);
    }
    __syncthreads();
    if (owns_key) {
      float of_tile = 0.0f;
      for (int q = 0; q < kQueryTile; ++q)
        of_tile = Join(statistic.kind, of_tile, tiles.p[q * (kKeyTile + 1) + thread]);
      total = Join(statistic.kind, total, of_tile);
    }
  }
  if (owns_key) *running = total;
}

// Whether any statistic covers queries of the run.
bool Counts(const PrefillAttentionArgs& args) {
  return std::any_of(
      args.statistics.begin(), args.statistics.end(), [&](const ColumnStatistic& statistic) {
        return statistic.Touches(args.first_position, args.first_position + args.num_queries);
      });
}

// Calls count(statistic) for each statistic that covers queries of the run, until one fails.
template <typename Count>
cudaError_t ForStatistics(const PrefillAttentionArgs& args, const Count& count) {
  cudaError_t error = cudaSuccess;
  for (const ColumnStatistic& statistic : args.statistics) {
    if (error == cudaSuccess &&
        statistic.Touches(args.first_position, args.first_position + args.num_queries))
      error = count(statistic);
  }
  return error;
}

template <int kDims>
cudaError_t Attend(const Context& context, const ExactArgs& exact) {
  const dim3 grid = HeadTileGrid(CeilDiv(exact.args.num_queries, kQueryTile), exact.args.num_heads);
  return Launch(AttendKernel<kDims>, grid, dim3(kThreads), Tiles::Bytes(exact.args.head_dim),
                context.stream, exact);
}

cudaError_t AttendExactly(const Context& context, const PrefillAttentionArgs& args) {
  ExactArgs exact;
  exact.prefix = PlacesOf(args);
  const int places = exact.prefix.places;
  exact.args = BehindPrefix(args, places);
  ScratchLayout layout;
  const size_t prefix_floats = static_cast<size_t>(args.num_kv_heads) * places * args.head_dim;
  const size_t lse =
      layout.Add<float>(Counts(args) ? static_cast<size_t>(args.num_heads) * args.num_queries : 0);
  const size_t k = layout.Add<float>(prefix_floats), v = layout.Add<float>(prefix_floats);
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error != cudaSuccess) return error;
  if (Counts(args)) exact.log_sum_exp = At<float>(scratch, lse);
  exact.prefix_k = At<float>(scratch, k);
  exact.prefix_v = At<float>(scratch, v);
  if (places > 0)
    error = GatherPrefix(context.stream,
                         {.prefix = *args.prefix,
                          .places = exact.prefix,
                          .by_position = args.window != kNoWindow,
                          .k = At<float>(scratch, k),
                          .v = At<float>(scratch, v),
                          .head_rows = places},
                         args.num_kv_heads);
  if (error != cudaSuccess) return error;
  error = args.head_dim <= 64    ? Attend<64>(context, exact)
          : args.head_dim <= 128 ? Attend<128>(context, exact)
                                 : Attend<256>(context, exact);
  if (error != cudaSuccess || exact.log_sum_exp == nullptr) return error;
  const dim3 grid = HeadTileGrid(CeilDiv(exact.args.NumKeys(), kKeyTile), args.num_kv_heads);
  return ForStatistics(exact.args, [&](const ColumnStatistic& statistic) {
    return Launch(ColumnStatisticKernel, grid, dim3(kThreads), Tiles::Bytes(args.head_dim),
                  context.stream, exact, statistic);
  });
}

// Converts `count` elements per row from fp32 or from `out`'s type. Grid y: rows, `stride` apart in
// x and `out_stride` in out.
template <bool kBF16>
__global__ void RoundRowsKernel(ArenaRows x, int64_t stride, int64_t count, uint16_t* out,
                                int64_t out_stride) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 2;
  if (i >= count) return;  // count is even, as head_dim is
  const int64_t from = blockIdx.y * stride + i;
  auto* const to = reinterpret_cast<uint32_t*>(out + blockIdx.y * out_stride + i);
  if (x.dtype == DType::kF32) {
    *to = PackHalves<kBF16>(x.f32()[from], x.f32()[from + 1]);
  } else {
    *to = *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(x.data) + from);
  }
}

// Number of blocks that share a block of keys, if there are too few key blocks for the
// multiprocessors. Results are bit-identical.
int StatisticSplits(const Context& context, const MmaArgs& m) {
  const bool by_sm90 = Sm90Counts(context, m.args);
  const int blocks_per_sm = by_sm90 ? 4 : 8;  // several per multiprocessor, to balance their ends
  const int columns =
      CeilDiv(m.keys, by_sm90 ? kSm90StatisticKeys : kMmaKeys) * m.args.num_kv_heads;
  const int tiles = CeilDiv(m.args.num_queries, kQueryTile);
  return std::clamp(CeilDiv(int64_t{context.num_sms} * blocks_per_sm, columns), 1, tiles);
}

// The statistics that cover queries of the run.
PassStatistics StatisticsOf(const PrefillAttentionArgs& args) {
  PassStatistics pass;
  for (const ColumnStatistic& statistic : args.statistics) {
    if (statistic.Touches(args.first_position, args.first_position + args.num_queries))
      pass.of[pass.count++] = statistic;
  }
  return pass;
}

template <bool kBF16, int kDims, int kCount>
cudaError_t CountAll(const Context& context, const MmaArgs& m, const PassStatistics& statistics,
                     const TileParts& parts) {
  using Statistics = MmaColumnStatistics<kBF16, kDims, kCount>;
  const int splits = parts.data == nullptr ? 1 : StatisticSplits(context, m);
  const dim3 grid = HeadTileGrid(CeilDiv(m.keys, kMmaKeys), m.args.num_kv_heads, splits);
  const cudaError_t error =
      Sm90Counts(context, m.args)
          ? Sm90Statistics(context, kBF16, m, statistics, parts, splits)
          : Launch(MmaColumnStatisticsKernel<kBF16, kDims, kCount>, grid, dim3(kMmaThreads),
                   Statistics::kSharedBytes, context.stream, m, statistics, parts);
  if (error != cudaSuccess || parts.data == nullptr) return error;
  return Launch(JoinTilesKernel, dim3(CeilDiv(m.keys, kJoinThreads), m.args.num_kv_heads, kCount),
                dim3(kJoinThreads), 0, context.stream, m, statistics, parts);
}

template <bool kBF16, int kDims>
cudaError_t Count(const Context& context, const MmaArgs& m, const TileParts& parts) {
  const PassStatistics statistics = StatisticsOf(m.args);
  switch (statistics.count) {
    case 0:
      return cudaSuccess;
    case 1:
      return CountAll<kBF16, kDims, 1>(context, m, statistics, parts);
    case 2:
      return CountAll<kBF16, kDims, 2>(context, m, statistics, parts);
    default:
      return CountAll<kBF16, kDims, 3>(context, m, statistics, parts);
  }
}

// Computes log-sum-exps in place of the maxima, from sums relative to them.
__global__ void LogSumExpKernel(float* maxima, const float* sums, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) maxima[i] = maxima[i] * kMmaLog2E + log2f(sums[i]);
}

// Runs the open kernel. `results` has room for maxima and sums, which become log-sum-exps if
// these are requested.
cudaError_t AttendOpenly(const Context& context, const MmaArgs& m, Sm90Results results) {
  if (m.log_sum_exp == nullptr) results.maxima = results.sums = nullptr;
  const cudaError_t error = Sm90Attention(context, m.args, results);
  if (error != cudaSuccess || m.log_sum_exp == nullptr) return error;
  const int64_t count = int64_t{m.args.num_heads} * m.args.num_queries;
  return Launch(LogSumExpKernel, dim3(CeilDiv(count, kThreads)), dim3(kThreads), 0, context.stream,
                results.maxima, results.sums, count);
}

template <bool kBF16, int kDims, int kRowTiles>
cudaError_t AttendTiles(const Context& context, const MmaArgs& m, const TileParts& parts,
                        const Sm90Results& open) {
  using Attention = MmaAttention<kBF16, kDims, kRowTiles>;
  const dim3 grid =
      HeadTileGrid(CeilDiv(m.args.num_queries, Attention::kQueries), m.args.num_heads);
  const bool only_counts = m.args.out == nullptr && m.log_sum_exp != nullptr;
  const cudaError_t error =
      open.counter != nullptr ? AttendOpenly(context, m, open)
      : only_counts && Sm90Counts(context, m.args)
          ? Sm90LogSumExps(context, kBF16, m)
          : Launch(MmaAttentionKernel<kBF16, kDims, kRowTiles>, grid, dim3(kMmaThreads),
                   Attention::kSharedBytes, context.stream, m);
  if (error != cudaSuccess || m.log_sum_exp == nullptr) return error;
  return Count<kBF16, kDims>(context, m, parts);
}

// The arguments without the keys that precede every query's window, in whole tiles, and without a
// prefix that no window reaches; positions are counted from the first remaining key.
PrefillAttentionArgs WithoutPast(const PrefillAttentionArgs& args) {
  constexpr int kUnit = 64;
  static_assert(kUnit % kKeyTile == 0 && kUnit % kMmaKeys == 0 && kUnit % kQueryTile == 0);
  const int past = args.FirstSeenAt(args.first_position) / kUnit * kUnit;
  PrefillAttentionArgs rest = args;
  if (!args.SeesPrefixAt(args.first_position)) rest.prefix = nullptr;
  rest.k = args.k + int64_t{past} * args.head_dim;
  rest.v = args.v + int64_t{past} * args.head_dim;
  rest.first_position -= past;
  rest.end_key -= past;
  return rest;
}

// Scratch layout for a run's 16-bit operands and intermediate results. 16-bit arena rows are read
// in place; keys after a prefix are copied.
struct RoundedSpace {
  bool copies_q, copies_kv;
  size_t q, k, v, lse, sums, counter, tile_parts, bytes;

  RoundedSpace(const MmaArgs& m, size_t part_floats, bool open)
      : copies_q(m.args.q.dtype == DType::kF32),
        copies_kv(m.args.k.dtype == DType::kF32 || m.prefix.places > 0 ||
                  m.args.kv_head_stride % m.args.head_dim != 0) {
    const PrefillAttentionArgs& args = m.args;
    const size_t q_count = size_t{1} * args.num_queries * args.num_heads * args.head_dim;
    const size_t kv_count = size_t{1} * args.num_kv_heads * m.keys * args.head_dim;
    ScratchLayout layout;
    q = layout.Add<uint16_t>(copies_q ? q_count : 0);
    k = layout.Add<uint16_t>(copies_kv ? kv_count : 0);
    v = layout.Add<uint16_t>(copies_kv ? kv_count : 0);
    const size_t rows = static_cast<size_t>(args.num_heads) * args.num_queries;
    lse = layout.Add<float>(rows + kQueryTile);
    sums = layout.Add<float>(open ? rows : 0);
    counter = layout.Add<int32_t>(1);
    tile_parts = layout.Add<float>(part_floats);
    bytes = layout.bytes();
  }
};

// Rounds rows of the run into scratch.
template <bool kBF16>
cudaError_t RoundRows(const Context& context, const ArenaRows& x, int64_t stride, int rows,
                      int64_t count, uint16_t* to, int64_t to_stride) {
  return Launch(RoundRowsKernel<kBF16>, dim3(CeilDiv(count, kThreads * 2), rows), dim3(kThreads), 0,
                context.stream, x, stride, count, to, to_stride);
}

// Places the run's keys and values after those of the prefix.
template <bool kBF16>
cudaError_t CopyKeysAndValues(const Context& context, const PrefillAttentionArgs& args, MmaArgs* m,
                              uint16_t* k, uint16_t* v) {
  const int64_t head_count = int64_t{m->keys} * args.head_dim;
  const int64_t prefix_count = int64_t{m->prefix.places} * args.head_dim;
  m->k = k;
  m->v = v;
  m->head_rows = m->keys;
  cudaError_t error = cudaSuccess;
  for (const auto& [from, to] : {std::pair(args.k, k), std::pair(args.v, v)}) {
    if (error == cudaSuccess)
      error = RoundRows<kBF16>(context, from, args.kv_head_stride, args.num_kv_heads,
                               head_count - prefix_count, to + prefix_count, head_count);
  }
  if (error != cudaSuccess || m->prefix.places == 0) return error;
  return GatherPrefix(context.stream,
                      {.prefix = *args.prefix,
                       .places = m->prefix,
                       .by_position = args.window != kNoWindow,
                       .dtype = kBF16 ? DType::kBF16 : DType::kF16,
                       .k = k,
                       .v = v,
                       .head_rows = m->keys},
                      args.num_kv_heads);
}

// Uses the arena's rows in place, for a run with 16-bit rows.
MmaArgs InPlace(const PrefillAttentionArgs& args) {
  MmaArgs m;
  m.prefix = PlacesOf(args);
  m.args = BehindPrefix(args, m.prefix.places);
  m.keys = m.args.NumKeys();
  m.scale = args.scale * kMmaLog2E;
  if (args.softcap != 0.0f) m.cap = args.softcap / args.scale;
  m.q = static_cast<const uint16_t*>(args.q.data);
  m.k = static_cast<const uint16_t*>(args.k.data);
  m.v = static_cast<const uint16_t*>(args.v.data);
  m.head_rows = static_cast<int>(args.kv_head_stride / args.head_dim);
  return m;
}

template <bool kBF16>
cudaError_t AttendRounded(const Context& context, const PrefillAttentionArgs& args) {
  MmaArgs m = InPlace(args);
  const bool counts = Counts(args);
  TileParts parts{.tiles = CeilDiv(args.num_queries, kQueryTile)};
  const bool in_parts = counts && StatisticSplits(context, m) > 1;
  const bool open = context.sm90_attention && Sm90Takes(args);
  const size_t part_floats =
      in_parts ? size_t{1} * StatisticsOf(m.args).count * parts.tiles * args.num_kv_heads * m.keys
               : 0;
  const RoundedSpace space(m, part_floats, open);
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get(space.bytes, &scratch);
  if (error != cudaSuccess) return error;
  if (space.copies_q) {
    const int64_t count = int64_t{args.num_queries} * args.num_heads * args.head_dim;
    m.q = At<uint16_t>(scratch, space.q);
    error = RoundRows<kBF16>(context, args.q, 0, 1, count, At<uint16_t>(scratch, space.q), count);
  }
  if (error == cudaSuccess && space.copies_kv)
    error = CopyKeysAndValues<kBF16>(context, args, &m, At<uint16_t>(scratch, space.k),
                                     At<uint16_t>(scratch, space.v));
  if (error != cudaSuccess) return error;
  m.log_sum_exp = counts ? At<float>(scratch, space.lse) : nullptr;
  if (in_parts) parts.data = At<float>(scratch, space.tile_parts);
  Sm90Results by_open;
  if (open)
    by_open = {At<float>(scratch, space.lse), At<float>(scratch, space.sums),
               At<int32_t>(scratch, space.counter)};
  if (args.head_dim <= 64) return AttendTiles<kBF16, 64, 2>(context, m, parts, by_open);
  if (args.head_dim <= 128) return AttendTiles<kBF16, 128, 2>(context, m, parts, by_open);
  return AttendTiles<kBF16, 256, 1>(context, m, parts, by_open);
}

// Short runs of several prompts, which alone would leave most multiprocessors idle; longer runs
// fill the device or use the open kernel.
constexpr int kMaxShortQueries = 1024;

bool GoesIntoBatch(const Context& context, const PrefillAttentionArgs& args) {
  return args.num_queries > 0 && args.num_queries <= kMaxShortQueries && args.head_dim <= 256 &&
         args.head_dim % 8 == 0 && args.precision != DType::kF32 &&
         args.q.dtype == args.precision && args.k.dtype == args.precision &&
         args.prefix == nullptr && args.kv_head_stride % args.head_dim == 0 &&
         !(context.sm90_attention && Sm90Takes(args) && args.num_queries >= kSm90AloneQueries);
}

// Whether two runs may share a grid: same kernel and same heads.
bool Alike(const PrefillAttentionArgs& a, const PrefillAttentionArgs& b) {
  return a.precision == b.precision && a.num_heads == b.num_heads &&
         a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim &&
         (a.softcap == 0.0f) == (b.softcap == 0.0f);
}

// The runs of `batch` with `count` statistics, in tiles of `keys` keys.
MmaBatch WithStatistics(const MmaBatch& batch, int count, int keys) {
  MmaBatch some;
  for (int i = 0; i < batch.count; ++i) {
    if (batch.runs[i].statistics.count != count) continue;
    MmaBatch::Run& run = some.runs[some.count++] = batch.runs[i];
    run.first_tile = some.tiles;
    some.tiles += CeilDiv(run.m.keys, keys);
  }
  return some;
}

template <bool kBF16, int kDims, int kCount>
cudaError_t CountBatch(const Context& context, const MmaBatch& batch) {
  const bool by_sm90 = Sm90Counts(context, batch.runs[0].m.args);
  const MmaBatch some = WithStatistics(batch, kCount, by_sm90 ? kSm90StatisticKeys : kMmaKeys);
  if (some.count == 0) return cudaSuccess;
  if (by_sm90) return Sm90BatchStatistics(context, kBF16, some, kCount);
  using Statistics = MmaColumnStatistics<kBF16, kDims, kCount>;
  const dim3 grid = HeadTileGrid(some.tiles, some.runs[0].m.args.num_kv_heads);
  return Launch(MmaBatchStatisticsKernel<kBF16, kDims, kCount>, grid, dim3(kMmaThreads),
                Statistics::kSharedBytes, context.stream, some);
}

template <bool kBF16, int kDims>
cudaError_t AttendBatch(const Context& context, const MmaBatch& batch) {
  using Attention = MmaAttention<kBF16, kDims, 1>;
  const dim3 grid = HeadTileGrid(batch.tiles, batch.runs[0].m.args.num_heads);
  cudaError_t error = Launch(MmaBatchAttentionKernel<kBF16, kDims>, grid, dim3(kMmaThreads),
                             Attention::kSharedBytes, context.stream, batch);
  if (error == cudaSuccess) error = CountBatch<kBF16, kDims, 1>(context, batch);
  if (error == cudaSuccess) error = CountBatch<kBF16, kDims, 2>(context, batch);
  if (error == cudaSuccess) error = CountBatch<kBF16, kDims, 3>(context, batch);
  return error;
}

template <bool kBF16>
cudaError_t AttendBatchOf(const Context& context, const MmaBatch& batch) {
  const int head_dim = batch.runs[0].m.args.head_dim;
  if (head_dim <= 64) return AttendBatch<kBF16, 64>(context, batch);
  if (head_dim <= 128) return AttendBatch<kBF16, 128>(context, batch);
  return AttendBatch<kBF16, 256>(context, batch);
}

MmaBatch::Run RunOf(const PrefillAttentionArgs& given) {
  const PrefillAttentionArgs args = WithoutPast(given);
  MmaBatch::Run run;
  run.m = InPlace(args);
  run.statistics = StatisticsOf(run.m.args);
  return run;
}

// Processes runs that may share one grid.
cudaError_t AttendTogether(const Context& context, std::span<const PrefillAttentionArgs> runs) {
  MmaBatch batch;
  size_t lse_rows = 0;
  for (const PrefillAttentionArgs& args : runs) {
    MmaBatch::Run& run = batch.runs[batch.count++] = RunOf(args);
    run.first_tile = batch.tiles;
    batch.tiles += CeilDiv(args.num_queries, 16 * kMmaWarps);
    if (run.statistics.count > 0) lse_rows += size_t{1} * args.num_heads * args.num_queries;
  }
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get((lse_rows + kQueryTile) * sizeof(float), &scratch);
  if (error != cudaSuccess) return error;
  auto* lse = static_cast<float*>(scratch);
  for (MmaBatch::Run& run : std::span(batch.runs, batch.count)) {
    if (run.statistics.count == 0) continue;
    run.m.log_sum_exp = lse;
    lse += int64_t{run.m.args.num_heads} * run.m.args.num_queries;
  }
  return runs[0].precision == DType::kBF16 ? AttendBatchOf<true>(context, batch)
                                           : AttendBatchOf<false>(context, batch);
}

}  // namespace

cudaError_t PrefillAttention(const Context& context, const PrefillAttentionArgs& given) {
  HYDRANT_CHECK(given.WindowIsValid());
  if (given.num_queries == 0) return cudaSuccess;
  if (given.head_dim > 256) return cudaErrorInvalidValue;
  const PrefillAttentionArgs args = WithoutPast(given);
  const bool fits_tensor_cores = args.head_dim % 8 == 0;
  if (args.precision == DType::kBF16 && fits_tensor_cores)
    return AttendRounded<true>(context, args);
  if (args.precision == DType::kF16 && fits_tensor_cores)
    return AttendRounded<false>(context, args);
  return AttendExactly(context, args);
}

cudaError_t PrefillAttentions(const Context& context, std::span<const PrefillAttentionArgs> runs) {
  std::vector<PrefillAttentionArgs> together;
  cudaError_t error = cudaSuccess;
  const auto flush = [&] {
    if (error == cudaSuccess && together.size() == 1)
      error = PrefillAttention(context, together[0]);
    if (error == cudaSuccess && together.size() > 1) error = AttendTogether(context, together);
    together.clear();
  };
  for (const PrefillAttentionArgs& run : runs) {
    HYDRANT_CHECK(run.WindowIsValid());
    if (!GoesIntoBatch(context, run)) {
      if (error == cudaSuccess) error = PrefillAttention(context, run);
      continue;
    }
    if (together.size() == kMaxBatch || (!together.empty() && !Alike(together[0], run))) flush();
    together.push_back(run);
  }
  flush();
  return error;
}

}  // namespace hydrant::cuda
