// Finds the n-th highest rank over many heads, digit by digit (eight bits), one launch per
// digit: every block adds its part to the digit's histogram, and derives the search state from
// the previous digit's.
#ifndef HYDRANT_KERNELS_CUDA_SHARED_SEARCH_CUH_
#define HYDRANT_KERNELS_CUDA_SHARED_SEARCH_CUH_

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

namespace hydrant::cuda {

// The last kept rank begins with the digits of `prefix`; `left` of the entries with
// that prefix are kept.
struct Progress {
  uint64_t prefix;
  int left;
};

// In scratch.
struct SharedSearch {
  unsigned* histograms;  // [digits][256], initially zero
  Progress* progress;    // [digits + 1], before each digit
};

// State after `digit` has been counted. All threads of a block call; `shared`: 256 numbers.
__device__ inline Progress After(const SharedSearch& search, int digit, int shift, unsigned* shared,
                                 Progress* result) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 256) shared[thread] = search.histograms[digit * 256 + thread];
  __syncthreads();
  if (thread == 0) {
    Progress progress = search.progress[digit];
    int value = 255;
    while (value > 0 && static_cast<int>(shared[value]) < progress.left)
      progress.left -= static_cast<int>(shared[value--]);
    progress.prefix |= static_cast<uint64_t>(value) << shift;
    *result = progress;
  }
  __syncthreads();
  return *result;
}

// The digits in which ranks can differ: all four of the score, and those of positions below n.
struct Digits {
  std::array<int, 8> shifts = {56, 48, 40, 32};
  int count = 4;

  explicit Digits(int n) {
    for (int shift = 24; shift >= 0; shift -= 8)
      if (shift == 0 || (n - 1) >> shift > 0) shifts[count++] = shift;
  }
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SHARED_SEARCH_CUH_
