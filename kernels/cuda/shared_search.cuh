// Finding the n-th highest rank of many heads together, digit by digit (eight bits), a launch each:
// every block adds its part to the digit's histogram, and reads from the last digit's how far the
// search has come.
#ifndef HYDRANT_KERNELS_CUDA_SHARED_SEARCH_CUH_
#define HYDRANT_KERNELS_CUDA_SHARED_SEARCH_CUH_

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

namespace hydrant::cuda {

// The last rank that stays begins with the digits of `prefix`, and `left` of the entries that do
// are to stay.
struct Progress {
  uint64_t prefix;
  int left;
};

// In work space.
struct SharedSearch {
  unsigned* histograms;  // [digits][256], zero at first
  Progress* progress;    // [digits + 1] before each digit
};

// The search after `digit` has been counted. All threads of a block call; `shared`: 256 numbers.
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

// The digits in which ranks can differ: of the scores all four, of the positions those below n.
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
