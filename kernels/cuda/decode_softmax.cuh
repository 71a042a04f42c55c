// From logits to weights in shared memory, for the entries that a block works on at once.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_SOFTMAX_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_SOFTMAX_CUH_

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/decode_scores.cuh"
#include "kernels/cuda/softcap.cuh"

namespace hydrant::cuda {

__device__ inline float LowerBoundLogit() { return -1e30f; }

// Called by all threads of the block. Logits are powers of two.
class DecodeSoftmax {
 public:
  static constexpr float kMostExcess = kMostLogExcess * kLog2E;

  __device__ DecodeSoftmax(const DecodeLaunch& launch, const DecodeUnit& unit,
                           const DecodeShared& shared)
      : l_(launch), u_(unit), s_(shared), thread_(static_cast<int>(threadIdx.x)) {}

  // Of the entries whose logits this thread reads in Weights(), and no other thread.
  __device__ void CapLogits() const {
    const float cap = l_.args.softcap * kLog2E;
    for (int h = 0; h < l_.group; ++h) {
      for (int i = thread_; i < u_.count; i += kDecodeThreads) {
        float& logit = s_.weights[h * l_.weight_stride() + i];
        logit = SoftCap(logit, cap);
      }
    }
  }

  // The denominator's logits, for scores that must wait until the whole head has been attended to.
  // Before Weights(), of the entries that this thread reads there.
  __device__ void KeepLogits() const {
    for (int h = 0; h < l_.group; ++h) {
      for (int i = thread_; i < u_.count; i += kDecodeThreads) {
        const float logit =
            u_.weighted ? LogitsAt<true>(h, i).denominator : LogitsAt<false>(h, i).denominator;
        l_.kept_logits[l_.LogitIndex(u_.unit, h, u_.begin + i)] = logit;
      }
    }
  }

  // Logits become weights relative to the block's maximum; zeros up to `padded` entries. Leaves
  // maximum and sum of query head h in Maximum(h), Sum(h). With log weights, these and s_.shares
  // are the denominator's; the numerator has a maximum of its own, so that neither can be lost
  // beside the other. Begins and ends with the block in step.
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
  // The sink logit of query head h, as a power of two.
  __device__ float Sink(int h) const {
    return l_.args.sink_logits[u_.head * l_.group + h] * kLog2E;
  }
  // The term that the sink logit of query head h adds to a head's sum with maximum `highest`. A
  // sink far above all entries leaves them nothing; bounded, it is still a number.
  __device__ float SinkShare(int h, float highest) const {
    constexpr float kMost = 120.0f;
    return Exp2(fminf(Sink(h) - highest, kMost));
  }
  // Sinks join the sums of a whole head. Sums are not read before the next barrier.
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
