// Finds the n-th highest of many floats, or the float at which accumulated weights reach a need,
// with all threads of one block: four passes over the key bits, eight bits per pass. Exact and
// independent of thread order.
#ifndef HYDRANT_KERNELS_CUDA_RADIX_CUH_
#define HYDRANT_KERNELS_CUDA_RADIX_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace hydrant::cuda {

// Keys sort like the floats; -0 equals 0, NaN counts as -infinity.
__device__ inline uint32_t OrderedKey(float value) {
  if (value != value) value = -INFINITY;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Lives in shared memory. Weight: int to count, unsigned long long to sum.
template <typename Weight>
class RadixSearch {
 public:
  // for_each(visit) calls visit(key, weight) for every element of this thread; the block's threads
  // together visit all. Afterwards threshold() is the highest key such that the weights of the keys
  // at or above it reach `need` (the lowest key if all together do not), equal() the weights at the
  // threshold, and remaining() the part of them that is needed. REQUIRES: all threads call. The
  // result is undefined for need <= 0.
  template <typename ForEach>
  __device__ void Find(Weight need, ForEach for_each) {
    uint32_t prefix = 0, known = 0;
    Weight left = need;
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = static_cast<int>(threadIdx.x); i < 256; i += static_cast<int>(blockDim.x))
        histogram_[i] = 0;
      __syncthreads();
      for_each([&](uint32_t key, Weight weight) {
        if ((key & known) == prefix) atomicAdd(&histogram_[key >> shift & 255], weight);
      });
      __syncthreads();
      if (threadIdx.x == 0) {
        int digit = 255;
        while (digit > 0 && histogram_[digit] < left) left -= histogram_[digit--];
        digit_ = static_cast<uint32_t>(digit);
        left_ = left;
      }
      __syncthreads();
      prefix |= digit_ << shift;
      known |= 255u << shift;
      left = left_;
      equal_ = histogram_[digit_];
      __syncthreads();
    }
    threshold_ = prefix;
    __syncthreads();
  }

  __device__ uint32_t threshold() const { return threshold_; }
  __device__ Weight equal() const { return equal_; }
  __device__ Weight remaining() const { return left_ < equal_ ? left_ : equal_; }

 private:
  Weight histogram_[256];
  Weight left_, equal_;
  uint32_t digit_, threshold_;
};

// Score first, then the higher position: distinct for every entry of a head.
__device__ inline uint64_t RankKey(float score, int32_t position) {
  return static_cast<uint64_t>(OrderedKey(score)) << 32 | static_cast<uint32_t>(position);
}

// The lowest of the `need` highest ranks; UINT64_MAX if need <= 0. for_each(visit) calls
// visit(rank) for every element of this thread. REQUIRES: all threads call; need elements exist.
template <typename ForEach>
__device__ uint64_t FindRank(RadixSearch<int>& search, int need, ForEach for_each) {
  if (need <= 0) return UINT64_MAX;
  search.Find(need, [&](auto visit) {
    for_each([&](uint64_t rank) { visit(static_cast<uint32_t>(rank >> 32), 1); });
  });
  const uint32_t score = search.threshold();
  search.Find(search.remaining(), [&](auto visit) {
    for_each([&](uint64_t rank) {
      if (static_cast<uint32_t>(rank >> 32) == score) visit(static_cast<uint32_t>(rank), 1);
    });
  });
  const uint64_t cut = static_cast<uint64_t>(score) << 32 | search.threshold();
  __syncthreads();  // before the next search
  return cut;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_RADIX_CUH_
