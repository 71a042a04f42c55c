// Converts logits to softmax weights in shared memory, for the entries that a block
// processes at once.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_SOFTMAX_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_SOFTMAX_CUH_

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/decode_scores.cuh"
#include "kernels/cuda/softcap.cuh"

namespace hydrant::cuda {

__device__ inline float LowerBoundLogit() { return -1e30f; }

// Called by all threads of the block. Logits are base 2.
class DecodeSoftmax {
 public:
  static constexpr float kMaxExcess = kMaxLogExcess * kLog2E;

  __device__ DecodeSoftmax(const DecodeLaunch& launch, const DecodeUnit& unit,
                           const DecodeShared& shared)
      : l_(launch), u_(unit), s_(shared), thread_(static_cast<int>(threadIdx.x)) {}

  // Each thread caps the logits that it alone reads in Weights().
  __device__ void CapLogits() const {
    const float cap = l_.args.softcap * kLog2E;
    for (int h = 0; h < l_.group; ++h) {
      for (int i = thread_; i < u_.count; i += kDecodeThreads) {
        float& logit = s_.weights[h * l_.weight_stride() + i];
        logit = SoftCap(logit, cap);
      }
    }
  }

  // Keeps the denominator's logits for scoring after the whole head is done. Call before Weights();
  // each thread keeps the entries that it reads there.
  __device__ void KeepLogits() const {
    for (int h = 0; h < l_.group; ++h) {
      for (int i = thread_; i < u_.count; i += kDecodeThreads) {
        const float logit =
            u_.weighted ? LogitsAt<true>(h, i).denominator : LogitsAt<false>(h, i).denominator;
        l_.kept_logits[l_.LogitIndex(u_.unit, h, u_.begin + i)] = logit;
      }
    }
  }

  // Replaces logits by weights relative to the block's maximum, with zeros up to `padded` entries.
  // Maximum(h) and Sum(h) then hold the values of query head h. With log weights, these and
  // s_.shares belong to the denominator; the numerator has its own maximum, so that neither
  // underflows. Begins and ends with a barrier.
  __device__ void Weights(int padded) {
    if (u_.weighted) {
      WeightsOf<true>(padded);
    } else {
      WeightsOf<false>(padded);
    }
  }

  __device__ float NumeratorMaximum(int h) const {
    if (!u_.weighted) return Maximum(h);
    float highest = LowerBoundLogit();
    for (int w = 0; w < kDecodeWarps; ++w)
      highest = fmaxf(highest, s_.by_warp[(2 * l_.weight_rows + h) * kDecodeWarps + w]);
    return highest;
  }
  __device__ float Maximum(int h) const {
    float highest = LowerBoundLogit();
    for (int w = 0; w < kDecodeWarps; ++w)
      highest = fmaxf(highest, s_.by_warp[h * kDecodeWarps + w]);
    return highest;
  }
  __device__ float Sum(int h) const {
    float sum = 0.0f;
    for (int w = 0; w < kDecodeWarps; ++w)
      sum += s_.by_warp[(l_.weight_rows + h) * kDecodeWarps + w];
    return sum;
  }

  __device__ bool HasSinks() const { return l_.args.sink_logits != nullptr; }
  // The sink logit of query head h, base 2.
  __device__ float Sink(int h) const {
    return l_.args.sink_logits[u_.head * l_.group + h] * kLog2E;
  }
  // The sink's term in the sum of query head h with maximum `highest`. Clamped, so that a sink far
  // above all entries does not overflow.
  __device__ float SinkShare(int h, float highest) const {
    constexpr float kLimit = 120.0f;
    return Exp2(fminf(Sink(h) - highest, kLimit));
  }
  // Adds sinks to the sums of a whole head. Sums are not read before the next barrier.
  __device__ void CountSinks() {
    for (int h = thread_; h < l_.group; h += kDecodeThreads)
      s_.by_warp[(l_.weight_rows + h) * kDecodeWarps] += SinkShare(h, Maximum(h));
  }

 private:
  template <bool kWeighted>
  __device__ void WeightsOf(int padded) {
    const int warp = thread_ / kWarpSize, lane = thread_ % kWarpSize;
    for (int h = 0; h < l_.group; ++h) {
      float highest = LowerBoundLogit(), highest_numerator = LowerBoundLogit();
      for (int i = thread_; i < u_.count; i += kDecodeThreads) {
        const LogitPair logits = LogitsAt<kWeighted>(h, i);
        highest = fmaxf(highest, logits.denominator);
        if (kWeighted) highest_numerator = fmaxf(highest_numerator, logits.numerator);
      }
      highest = WarpMax(highest);
      if (lane == 0) s_.by_warp[h * kDecodeWarps + warp] = highest;
      if (!kWeighted) continue;
      highest_numerator = WarpMax(highest_numerator);
      if (lane == 0) s_.by_warp[(2 * l_.weight_rows + h) * kDecodeWarps + warp] = highest_numerator;
    }
    __syncthreads();
    for (int h = 0; h < l_.weight_rows; ++h) {
      const bool exists = h < l_.group;
      const float highest = exists ? Maximum(h) : 0.0f;
      const float highest_numerator = kWeighted && exists ? NumeratorMaximum(h) : highest;
      float sum = 0.0f;
      for (int i = thread_; i < padded; i += kDecodeThreads) {
        LogitPair logits = {-INFINITY, -INFINITY};
        if (i < u_.count && exists) logits = LogitsAt<kWeighted>(h, i);
        const float share = Exp2(logits.denominator - highest);
        const int at = h * l_.weight_stride() + i;
        s_.shares[at] = share;
        if (kWeighted) s_.weights[at] = Exp2(logits.numerator - highest_numerator);
        sum += share;
      }
      sum = WarpSum(sum);
      if (lane == 0) s_.by_warp[(l_.weight_rows + h) * kDecodeWarps + warp] = sum;
    }
    __syncthreads();
  }
  struct LogitPair {
    float numerator, denominator;
  };
  template <bool kWeighted>
  __device__ LogitPair LogitsAt(int h, int i) const {
    const float logit = s_.weights[h * l_.weight_stride() + i];
    if constexpr (kWeighted) {
      const float* log_weights = LogWeightsAt(l_, u_, u_.begin + i);
      return {fmaf(log_weights[0], kLog2E, logit), fmaf(log_weights[1], kLog2E, logit)};
    } else {
      return {logit, logit};
    }
  }

  const DecodeLaunch& l_;
  const DecodeUnit& u_;
  const DecodeShared& s_;
  const int thread_;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_SOFTMAX_CUH_
