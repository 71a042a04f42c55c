// State of a row's sampling between launches, and its search for a cut: the highest key such that
// the weights of the keys at or above it reach a need, found in three launches of eleven key bits
// each. Weights are integers, so the order of blocks does not matter.
#ifndef HYDRANT_KERNELS_CUDA_SAMPLE_SEARCH_CUH_
#define HYDRANT_KERNELS_CUDA_SAMPLE_SEARCH_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.cuh"

namespace hydrant::cuda {

using SampleSum = unsigned long long;

inline constexpr int kSearchPasses = 3;
inline constexpr int kSearchBins = 1 << 11;

// The candidates: keys above `key`, and the first `quota` (by id) equal to it; all of weight at
// least `least_weight`.
struct SampleCut {
  uint32_t key;
  int quota;
  SampleSum least_weight;
};

enum class SamplePhase : int32_t { kTopK, kTopP, kDraw, kDone };

struct SampleRowState {
  SamplePhase phase;
  int pass;         // of a search, [0, kSearchPasses)
  uint32_t prefix;  // the known bits of the key
  SampleSum left;   // the weight still to reach
  SampleCut cut;    // from earlier searches
  double highest;   // logit
  double inverse_temperature;
};

// Bits [shift, shift + bits) are the pass's digit; the bits above are known.
constexpr int SearchShift(int pass) { return pass == 0 ? 21 : pass == 1 ? 10 : 0; }
constexpr int SearchBits(int pass) { return pass == 2 ? 10 : 11; }
__device__ inline bool IsUnderPrefix(uint32_t key, const SampleRowState& row) {
  return row.pass == 0 || (key ^ row.prefix) >> (SearchShift(row.pass) + SearchBits(row.pass)) == 0;
}
__device__ inline int SearchDigit(uint32_t key, int pass) {
  return static_cast<int>(key >> SearchShift(pass) & ((1u << SearchBits(pass)) - 1));
}

// Sums of weights by digit in shared memory. Each sum is stored as three 15-bit parts: shared
// memory has native 32-bit atomic adds, but 64-bit adds need compare-and-swap. REQUIRES: weights <
// 2^45; at most 2^17 of them.
class PartialBins {
 public:
  __device__ void Clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kSearchBins; i += static_cast<int>(blockDim.x))
      low_[i] = middle_[i] = high_[i] = 0;
    __syncthreads();
  }
  __device__ void Add(int bin, SampleSum weight) {
    const auto low = static_cast<uint32_t>(weight) & kMask;
    const auto middle = static_cast<uint32_t>(weight >> kPart) & kMask;
    const auto high = static_cast<uint32_t>(weight >> 2 * kPart);
    if (low != 0) atomicAdd(&low_[bin], low);
    if (middle != 0) atomicAdd(&middle_[bin], middle);
    if (high != 0) atomicAdd(&high_[bin], high);
  }
  // Adds to the row's bins in global memory.
  __device__ void AddTo(SampleSum* bins) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kSearchBins;
         i += static_cast<int>(blockDim.x)) {
      const SampleSum sum =
          low_[i] + (SampleSum{middle_[i]} << kPart) + (SampleSum{high_[i]} << 2 * kPart);
      if (sum != 0) atomicAdd(&bins[i], sum);
    }
  }

 private:
  static constexpr int kPart = 15;
  static constexpr uint32_t kMask = (1u << kPart) - 1;
  uint32_t low_[kSearchBins], middle_[kSearchBins], high_[kSearchBins];
};

// The sum of `value` over the threads before this one, and over all in *total. `shared`: one number
// per warp. Ends with a barrier.
template <int kWarps, typename T>
__device__ T SumBefore(T value, T* shared, T* total) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  T inclusive = value;
  for (int delta = 1; delta < kWarpSize; delta *= 2) {
    const T below = __shfl_up_sync(kAllLanes, inclusive, delta);
    if (lane >= delta) inclusive += below;
  }
  if (lane == kWarpSize - 1) shared[thread / kWarpSize] = inclusive;
  __syncthreads();
  T before = inclusive - value;
  *total = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < thread / kWarpSize) before += shared[warp];
    *total += shared[warp];
  }
  __syncthreads();
  return before;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SAMPLE_SEARCH_CUH_
