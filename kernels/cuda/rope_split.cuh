// Stores the elements of RopeSplitArgs, for the operation and for the product fused with it.
#ifndef HYDRANT_KERNELS_CUDA_ROPE_SPLIT_CUH_
#define HYDRANT_KERNELS_CUDA_ROPE_SPLIT_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/page_element.cuh"
#include "kernels/ops/elementwise.h"

namespace hydrant::cuda {

// Two elements of a head that are rotated together.
struct RotaryPair {
  int first, second;
};
__device__ inline RotaryPair RotaryPairOf(const RopeSplitArgs& args, int pair) {
  if (args.interleaved) return {2 * pair, 2 * pair + 1};
  return {pair, pair + args.rotary_dim / 2};
}

// Destination of a row's head. Heads are ordered queries, keys, values.
__device__ inline MutableArenaRows SplitHead(const RopeSplitArgs& args, int row, int head) {
  if (head < args.num_heads)
    return args.q + (static_cast<int64_t>(row) * args.num_heads + head) * args.head_dim;
  head -= args.num_heads;
  const bool keys = head < args.num_kv_heads;
  const int64_t first =
      row * args.kv_row_stride + (keys ? head : head - args.num_kv_heads) * args.kv_head_stride;
  return (keys ? args.k : args.v) + first;
}

// Rotates and stores elements a and b of a query or key. REQUIRES: no block-quantized precision
__device__ inline void StoreRotated(const RopeSplitArgs& args, int position, int head, int pair,
                                    float a, float b, const MutableArenaRows& to) {
  const bool query = head < args.num_heads;
  const size_t angle = static_cast<size_t>(position) * (args.rotary_dim / 2) + pair;
  const float scale = query ? args.query_scale : 1.0f;
  const DType before = query ? args.query_precision : DType::kF32;
  const DType after = query ? DType::kF32 : args.kv_precision;
  a = RoundElement(before, a);
  b = RoundElement(before, b);
  const float c = scale * args.cos[angle], s = scale * args.sin[angle];
  const RotaryPair at = RotaryPairOf(args, pair);
  StoreElement(to, at.first, RoundElement(after, a * c - b * s));
  StoreElement(to, at.second, RoundElement(after, b * c + a * s));
}

// Stores an element that is not rotated. REQUIRES: no block-quantized precision
__device__ inline void StoreUnrotated(const RopeSplitArgs& args, int head, int element, float x,
                                      const MutableArenaRows& to) {
  const DType dtype = head < args.num_heads ? args.query_precision : args.kv_precision;
  StoreElement(to, element, RoundElement(dtype, x));
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_ROPE_SPLIT_CUH_
