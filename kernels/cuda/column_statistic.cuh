// The arithmetic of a ColumnStatistic (kernels/ops/prefill_attention.h), one weight at a time.
#ifndef HYDRANT_KERNELS_CUDA_COLUMN_STATISTIC_CUH_
#define HYDRANT_KERNELS_CUDA_COLUMN_STATISTIC_CUH_

#include <cuda_runtime.h>

#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

// Adds one query head's weight to its group's value, which begins at 0; a mean is kept as a
// sum until ShareOf().
__device__ inline float AddHead(GroupReduce reduce, float weight, float group) {
  return reduce == GroupReduce::kMax            ? fmaxf(group, weight)
         : reduce == GroupReduce::kSumOfSquares ? fmaf(weight, weight, group)
                                                : group + weight;
}

__device__ inline float ShareOf(GroupReduce reduce, int group) {
  return reduce == GroupReduce::kMean ? 1.0f / static_cast<float>(group) : 1.0f;
}

// A query's contribution to a key: the group's weight, 0 where it is not `seen`, or for kBelowMean
// whether the weight is below the mean over `keys`.
__device__ inline float Contribution(ColumnStatistic::Kind kind, float weight, bool seen,
                                     int keys) {
  if (kind != ColumnStatistic::Kind::kBelowMean) return weight;
  return seen && weight * static_cast<float>(keys) < 1.0f - kBelowMeanMargin ? 1.0f : 0.0f;
}

__device__ inline float Join(ColumnStatistic::Kind kind, float a, float b) {
  return kind == ColumnStatistic::Kind::kMax ? fmaxf(a, b) : a + b;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_COLUMN_STATISTIC_CUH_
