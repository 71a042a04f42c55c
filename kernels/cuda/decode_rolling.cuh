// Decode kernel parts for rolling heads (kernels/kv_pages.h): ranks instead of positions, and
// logits of keys that are rotated as they are read.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_ROLLING_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_ROLLING_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/page_row.cuh"

namespace hydrant::cuda {

// An entry's rank after the step. Ranks above rank_above decrease by one.
__device__ inline int32_t RankAfter(const DecodeUnit& unit, int entry, int32_t stored,
                                    int32_t rank_above) {
  if (entry == unit.new_entry) return unit.length - 1;
  return stored > rank_above ? stored - 1 : stored;
}

// weights[h, e] = q[h] k[e] for all query heads of the group and all entries of the block, k[e]
// rotated back by its distance to the new entry. One warp per entry. Not inlined, with arguments by
// value, so that blocks of other heads do not pay for its registers.
template <DType kDType>
__device__ __noinline__ void RollingLogits(const DecodeLaunch& launch, DecodeUnit unit,
                                           DecodeShared shared, int32_t rank_above) {
  constexpr int kMaxDims = 512 / kWarpSize;  // of a lane
  const DecodeAttentionArgs& args = launch.args;
  const int head_dim = args.pages.layout.head_dim;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float scale = args.scale * kLog2E;
  const float* q = args.q + (static_cast<size_t>(unit.row) * args.num_heads +
                             static_cast<size_t>(unit.head) * launch.group) *
                                head_dim;
  for (int e = warp; e < unit.count; e += kDecodeWarps) {
    const uint32_t slot = shared.index[e];
    const int32_t rank = RankAfter(unit, unit.begin + e, args.pages.positions[slot], rank_above);
    const auto element = [&](int d) {
      return LoadAnyElement(kDType, args.pages.keys, static_cast<size_t>(slot) * head_dim + d);
    };
    float key[kMaxDims];
#pragma unroll
    for (int i = 0; i < kMaxDims; ++i) {
      const int d = lane + i * kWarpSize;
      key[i] = d < head_dim ? RotatedBack(args.rotary, unit.length - 1 - rank, d, element) : 0.0f;
    }
    for (int h = 0; h < launch.group; ++h) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kMaxDims; ++i) {
        const int d = lane + i * kWarpSize;
        if (d < head_dim) sum = fmaf(q[static_cast<size_t>(h) * head_dim + d], key[i], sum);
      }
      sum = WarpSum(sum);
      if (lane == 0) shared.weights[h * launch.weight_stride() + e] = sum * scale;
    }
  }
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_ROLLING_CUH_
