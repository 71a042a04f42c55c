#include "kernels/cuda/head_tiles.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill_runs.cuh"
#include "kernels/cuda/sm90_statistics.cuh"
#include "kernels/cuda/sm90_statistics.h"

namespace hydrant::cuda {
namespace {

template <bool kBF16, int kDims, int kCount>
__global__ void __launch_bounds__(kSm90Threads, 1)
    Sm90StatisticsKernel(const __grid_constant__ MmaArgs m,
                         const __grid_constant__ PassStatistics statistics,
                         const __grid_constant__ TileParts parts) {
  if constexpr (kHasWgmma) {
    Sm90ColumnStatistics<kBF16, kDims, kCount>(m, statistics, parts, HeadTile::FirstTileFirst())
        .Run();
  } else {
    __trap();  // compiled for a GPU that Sm90Counts() excludes
  }
}

template <bool kBF16, int kDims, int kCount>
__global__ void __launch_bounds__(kSm90Threads, 1)
    Sm90BatchStatisticsKernel(const __grid_constant__ MmaBatch batch) {
  if constexpr (kHasWgmma) {
    HeadTile block = HeadTile::FirstTileFirst();
    const MmaBatch::Run& run = batch.Find(&block.tile);
    Sm90ColumnStatistics<kBF16, kDims, kCount>(run.m, run.statistics, TileParts(), block).Run();
  } else {
    __trap();
  }
}

template <bool kBF16, int kDims>
__global__ void __launch_bounds__(kSm90Threads, 1)
    Sm90LogSumExpKernel(const __grid_constant__ MmaArgs m) {
  if constexpr (kHasWgmma) {
    Sm90QueryLogSumExps<kBF16, kDims>(m, HeadTile::LastTileFirst()).Run();
  } else {
    __trap();
  }
}

// Three would exceed the registers of a warpgroup.
constexpr int kMaxAtOnce = 2;

// Up to kMaxAtOnce statistics of a pass, from index `first` on.
PassStatistics From(const PassStatistics& statistics, int first) {
  PassStatistics some;
  while (first < statistics.count && some.count < kMaxAtOnce)
    some.of[some.count++] = statistics.of[first++];
  return some;
}

// Calls launch.template operator()<kBF16, kDims, kCount>() with the matching constants.
template <bool kBF16, typename Launch>
cudaError_t WithDims(int head_dim, int count, const Launch& launch) {
  if (head_dim <= 64)
    return count == 1 ? launch.template operator()<kBF16, 64, 1>()
                      : launch.template operator()<kBF16, 64, 2>();
  return count == 1 ? launch.template operator()<kBF16, 128, 1>()
                    : launch.template operator()<kBF16, 128, 2>();
}
template <typename Launch>
cudaError_t WithTypes(bool bf16, int head_dim, int count, const Launch& launch) {
  return bf16 ? WithDims<true>(head_dim, count, launch) : WithDims<false>(head_dim, count, launch);
}

}  // namespace

bool Sm90Counts(const Context& context, const PrefillAttentionArgs& args) {
  return context.sm90_statistics && !context.batch_invariant && args.head_dim <= 128 &&
         args.softcap == 0.0f && args.scale > 0.0f;
}

cudaError_t Sm90Statistics(const Context& context, bool bf16, const MmaArgs& m,
                           const PassStatistics& statistics, const TileParts& parts, int splits) {
  const dim3 grid = HeadTileGrid(CeilDiv(m.keys, kSm90StatisticKeys), m.args.num_kv_heads, splits);
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < statistics.count && error == cudaSuccess; first += kMaxAtOnce) {
    const PassStatistics some = From(statistics, first);
    TileParts of_some = parts;
    if (parts.data != nullptr)
      of_some.data += size_t{1} * first * parts.tiles * m.args.num_kv_heads * m.keys;
    error = WithTypes(bf16, m.args.head_dim, some.count, [&]<bool kBF16, int kDims, int kCount>() {
      return Launch(Sm90StatisticsKernel<kBF16, kDims, kCount>, grid, dim3(kSm90Threads),
                    Sm90ColumnStatistics<kBF16, kDims, kCount>::kSharedBytes, context.stream, m,
                    some, of_some);
    });
  }
  return error;
}

cudaError_t Sm90BatchStatistics(const Context& context, bool bf16, const MmaBatch& batch,
                                int count) {
  const PrefillAttentionArgs& args = batch.runs[0].m.args;
  const dim3 grid = HeadTileGrid(batch.tiles, args.num_kv_heads);
  MmaBatch some = batch;
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < count && error == cudaSuccess; first += kMaxAtOnce) {
    for (int i = 0; i < batch.count; ++i)
      some.runs[i].statistics = From(batch.runs[i].statistics, first);
    error = WithTypes(bf16, args.head_dim, some.runs[0].statistics.count,
                      [&]<bool kBF16, int kDims, int kCount>() {
                        return Launch(Sm90BatchStatisticsKernel<kBF16, kDims, kCount>, grid,
                                      dim3(kSm90Threads),
                                      Sm90ColumnStatistics<kBF16, kDims, kCount>::kSharedBytes,
                                      context.stream, some);
                      });
  }
  return error;
}

cudaError_t Sm90LogSumExps(const Context& context, bool bf16, const MmaArgs& m) {
  const dim3 grid = HeadTileGrid(CeilDiv(m.args.num_queries, kSm90BlockRows), m.args.num_heads);
  return WithTypes(bf16, m.args.head_dim, 1, [&]<bool kBF16, int kDims, int>() {
    return Launch(Sm90LogSumExpKernel<kBF16, kDims>, grid, dim3(kSm90Threads),
                  Sm90QueryLogSumExps<kBF16, kDims>::kSharedBytes, context.stream, m);
  });
}

}  // namespace hydrant::cuda
