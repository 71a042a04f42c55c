// Ordered lists of a head's entries, made by all threads of a block.
#ifndef HYDRANT_KERNELS_CUDA_LIST_ENTRIES_CUH_
#define HYDRANT_KERNELS_CUDA_LIST_ENTRIES_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.cuh"

namespace hydrant::cuda {

// Appends the entries of [begin, end) for which takes(entry) holds to `list`, which has `listed`
// already; returns the new count. shared: kWarps + 1 numbers. REQUIRES: the block has kWarps warps,
// and all threads call.
template <int kWarps, typename Takes>
__device__ int ListEntries(int listed, int begin, int end, Takes takes, int32_t* list,
                           int* shared) {
  for (int tile = begin; tile < end; tile += kWarps * kWarpSize) {
    const int entry = tile + static_cast<int>(threadIdx.x);
    const bool taken = entry < end && takes(entry);
    int count = 0;
    const int place = listed + BlockExclusiveSum<kWarps>(taken ? 1 : 0, shared, &count);
    if (taken) list[place] = entry;
    listed += count;
  }
  return listed;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_LIST_ENTRIES_CUH_
