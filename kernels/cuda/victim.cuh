// Picks a head's victim with all threads of a block (the rule: kernels/kv_pages.h).
#ifndef HYDRANT_KERNELS_CUDA_VICTIM_CUH_
#define HYDRANT_KERNELS_CUDA_VICTIM_CUH_

#include <cuda_runtime.h>

#include <climits>
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/kv_pages.h"

namespace hydrant::cuda {

struct VictimCandidate {
  float score;
  int32_t position;
  int32_t entry;

  // Entry 0 is the victim if every entry is protected.
  __device__ static VictimCandidate None() { return {INFINITY, INT_MAX, 0}; }
  __device__ void Offer(const VictimCandidate& other) {
    if (other.score < score || (other.score == score && other.position < position)) *this = other;
  }
  __device__ void OfferEntry(const DecodeRule& rule, int32_t next_position, int32_t candidate,
                             int32_t at, float candidate_score) {
    if (at < rule.sinks || at > next_position - rule.recent) return;
    // NaN counts as -infinity.
    Offer({candidate_score == candidate_score ? candidate_score : -INFINITY, at, candidate});
  }
};

// The lowest of all threads' candidates, returned to every thread. `shared`: one candidate per
// warp. Ends with a barrier.
template <int kThreads>
__device__ VictimCandidate BlockVictim(VictimCandidate mine, VictimCandidate* shared) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    mine.Offer({__shfl_xor_sync(kAllLanes, mine.score, mask),
                __shfl_xor_sync(kAllLanes, mine.position, mask),
                __shfl_xor_sync(kAllLanes, mine.entry, mask)});
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarpSize == 0) shared[thread / kWarpSize] = mine;
  __syncthreads();
  for (int warp = 0; warp < kThreads / kWarpSize; ++warp) mine.Offer(shared[warp]);
  __syncthreads();
  return mine;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_VICTIM_CUH_
