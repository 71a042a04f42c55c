// Block-wide minimum of distances.
#ifndef HYDRANT_KERNELS_CUDA_NEAREST_CUH_
#define HYDRANT_KERNELS_CUDA_NEAREST_CUH_

#include <cuda_runtime.h>

#include <climits>
#include <cmath>

#include "kernels/cuda/launch.cuh"

namespace hydrant::cuda {

struct Nearest {
  float distance;
  int index;

  __device__ static Nearest None() { return {INFINITY, INT_MAX}; }
  __device__ bool Exists() const { return index != INT_MAX; }
  // Ties go to the lower index.
  __device__ void Offer(const Nearest& other) {
    if (other.distance < distance || (other.distance == distance && other.index < index))
      *this = other;
  }
};

// The nearest of all threads' candidates, returned to every thread. `shared`: one candidate per
// warp. Ends with a barrier.
template <int kThreads>
__device__ Nearest BlockNearest(Nearest mine, Nearest* shared) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    mine.Offer({__shfl_xor_sync(kAllLanes, mine.distance, mask),
                __shfl_xor_sync(kAllLanes, mine.index, mask)});
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarpSize == 0) shared[thread / kWarpSize] = mine;
  __syncthreads();
  for (int warp = 0; warp < kThreads / kWarpSize; ++warp) mine.Offer(shared[warp]);
  __syncthreads();
  return mine;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_NEAREST_CUH_
