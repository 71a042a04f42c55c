// Prefix sums over the threads of a block, for ordered passes.
#ifndef HYDRANT_KERNELS_CUDA_BLOCK_SUM_CUH_
#define HYDRANT_KERNELS_CUDA_BLOCK_SUM_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"

namespace hydrant::cuda {

// Exclusive sum of `value` over the block's kWarps warps, in thread order; the total in *total.
// `shared`: kWarps + 1 numbers. Ends with a barrier.
template <int kWarps>
__device__ int BlockExclusiveSum(int value, int* shared, int* total) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  int inclusive = value;
  for (int delta = 1; delta < kWarpSize; delta *= 2) {
    const int below = __shfl_up_sync(kAllLanes, inclusive, delta);
    if (lane >= delta) inclusive += below;
  }
  if (lane == kWarpSize - 1) shared[thread / kWarpSize] = inclusive;
  __syncthreads();
  if (thread == 0) {
    int sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      const int count = shared[warp];
      shared[warp] = sum;
      sum += count;
    }
    shared[kWarps] = sum;
  }
  __syncthreads();
  *total = shared[kWarps];
  const int before = shared[thread / kWarpSize] + inclusive - value;
  __syncthreads();
  return before;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_BLOCK_SUM_CUH_
