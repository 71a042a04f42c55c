// Joins the parts of a split head, in the last block to finish.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_JOIN_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_JOIN_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_entry.cuh"
#include "kernels/cuda/decode_softmax.cuh"

namespace hydrant::cuda {

// Combines the sums and maxima of a head's parts into its output, head_max and head_sum. part(i):
// index of the head's part i of `parts`. REQUIRES: parts <= weight_stride. All threads of the block
// call; shared.weights and shared.shares are overwritten. Other blocks' results are read with
// __ldcg, past this multiprocessor's L1 cache, which may hold a stale copy of the line.
template <typename Part>
class DecodeJoin {
 public:
  __device__ DecodeJoin(const DecodeLaunch& launch, const DecodeUnit& unit,
                        const DecodeShared& shared, const DecodeSoftmax& softmax, int parts,
                        Part part)
      : l_(launch),
        u_(unit),
        softmax_(softmax),
        parts_(parts),
        part_(part),
        factor_(shared.shares),
        numerator_factor_(shared.weights) {}

  __device__ void Run() {
    for (int h = static_cast<int>(threadIdx.x) / kWarpSize; h < l_.group; h += kDecodeWarps)
      Factors(h, static_cast<int>(threadIdx.x) % kWarpSize);
    __syncthreads();
    Outputs();
  }

 private:
  __device__ size_t Index(int i, int h) const {
    return static_cast<size_t>(part_(i)) * l_.group + h;
  }

  // factor[h, part] converts a part's weights to shares of the whole head, numerator_factor its
  // value sums. One warp per query head.
  __device__ void Factors(int h, int lane) {
    float highest = softmax_.HasSinks() ? softmax_.Sink(h) : LowerBoundLogit();
    for (int i = lane; i < parts_; i += kWarpSize)
      highest = fmaxf(highest, __ldcg(&l_.part_max[Index(i, h)]));
    highest = WarpMax(highest);
    float numerator_top = highest;
    if (u_.weighted) {
      float highest_numerator = LowerBoundLogit();
      for (int i = lane; i < parts_; i += kWarpSize)
        highest_numerator = fmaxf(highest_numerator, __ldcg(&l_.part_numerator_max[Index(i, h)]));
      numerator_top = fmaxf(highest, WarpMax(highest_numerator) - DecodeSoftmax::kMaxExcess);
    }
    float sum = 0.0f;
    for (int i = lane; i < parts_; i += kWarpSize) {
      const float scale = Exp2(__ldcg(&l_.part_max[Index(i, h)]) - highest);
      factor_[h * parts_ + i] = scale;
      if (u_.weighted)
        numerator_factor_[h * parts_ + i] =
            Exp2(__ldcg(&l_.part_numerator_max[Index(i, h)]) - numerator_top);
      sum += __ldcg(&l_.part_sum[Index(i, h)]) * scale;
    }
    sum = WarpSum(sum);
    if (softmax_.HasSinks()) sum += Exp2(softmax_.Sink(h) - highest);
    for (int i = lane; i < parts_; i += kWarpSize) {
      factor_[h * parts_ + i] /= sum;
      if (u_.weighted) numerator_factor_[h * parts_ + i] /= sum;
    }
    if (lane != 0) return;
    const size_t head = static_cast<size_t>(u_.unit) * l_.group + h;
    l_.head_max[head] = highest;
    l_.head_sum[head] = sum;
  }

  // Two dims per thread if head_dim is even: a thread's loads are all in flight together.
  __device__ void Outputs() const {
    const int head_dim = l_.args.pages.layout.head_dim;
    if (head_dim % 2 != 0) {
      for (int i = static_cast<int>(threadIdx.x); i < l_.group * head_dim; i += kDecodeThreads) {
        const int h = i / head_dim, d = i % head_dim;
        float sum = 0.0f;
        for (int p = 0; p < parts_; ++p)
          sum +=
              __ldcg(&l_.part_out[Index(p, h) * head_dim + d]) * numerator_factor_[h * parts_ + p];
        StoreHeadOutput(l_, u_, h, d, sum);
      }
      return;
    }
    const int pairs = head_dim / 2;
    for (int i = static_cast<int>(threadIdx.x); i < l_.group * pairs; i += kDecodeThreads) {
      const int h = i / pairs, d = i % pairs * 2;
      float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 16
      for (int p = 0; p < parts_; ++p) {
        const float2 out =
            __ldcg(reinterpret_cast<const float2*>(&l_.part_out[Index(p, h) * head_dim + d]));
        const float factor = numerator_factor_[h * parts_ + p];
        sum.x += out.x * factor;
        sum.y += out.y * factor;
      }
      StoreHeadOutput(l_, u_, h, d, sum.x);
      StoreHeadOutput(l_, u_, h, d + 1, sum.y);
    }
  }

  const DecodeLaunch& l_;
  const DecodeUnit& u_;
  const DecodeSoftmax& softmax_;
  const int parts_;
  const Part part_;
  float* const factor_;
  float* const numerator_factor_;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_JOIN_CUH_
