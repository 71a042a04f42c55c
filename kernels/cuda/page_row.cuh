// Rows of keys and values in pages (kernels/page_row.h), bit-identical to the plain functions. The
// 32 lanes of a warp process 32 consecutive values, which is one block of a quantized type: there
// all lanes must take part, and index % 32 must equal the lane.
#ifndef HYDRANT_KERNELS_CUDA_PAGE_ROW_CUH_
#define HYDRANT_KERNELS_CUDA_PAGE_ROW_CUH_

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_element.cuh"
#include "kernels/page_row.h"

namespace hydrant::cuda {

static_assert(kHadamardDim == kWarpSize);

__device__ constexpr bool IsBlocks(DType dtype) {
  return dtype == DType::kQ8_0 || dtype == DType::kQ4_0;
}

// HadamardTransform() over the warp's values.
__device__ inline float TransformInWarp(float value) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int apart = 1; apart < kWarpSize; apart *= 2) {
    const float partner = __shfl_xor_sync(kAllLanes, value, apart);
    value = (lane & apart) != 0 ? partner - value : value + partner;
  }
  return value;
}

// A block held by a warp: the scale, and this lane's number.
struct WarpBlock {
  uint16_t scale;
  int quant;

  __device__ float Value() const { return HalfOf<false>(scale, 0) * static_cast<float>(quant); }
};

// Quantizes values (already transformed, if the type is). Products and sums are rounded one by one.
__device__ inline WarpBlock QuantizeInWarp(DType dtype, float value) {
  constexpr uint16_t kNan = 0x7e00;
  const float magnitude = fabsf(value);
  const bool spoilt = __any_sync(kAllLanes, !(magnitude < INFINITY)) != 0;
  const float highest = WarpMax(spoilt ? 0.0f : magnitude);
  const unsigned peaks = __ballot_sync(kAllLanes, magnitude == highest);
  const int first = peaks == 0 ? 0 : __ffs(static_cast<int>(peaks)) - 1;
  const float peak = __shfl_sync(kAllLanes, value, first);
  const float scale = dtype == DType::kQ8_0 ? highest / 127.0f : peak / -8.0f;
  const float inverse = 1.0f / scale;
  WarpBlock block;
  block.scale = spoilt ? kNan : static_cast<uint16_t>(PackHalves<false>(scale, 0.0f));
  block.quant = 0;
  if (spoilt || !(fabsf(inverse) < INFINITY)) return block;
  const float steps = __fmul_rn(value, inverse);
  block.quant = dtype == DType::kQ8_0 ? static_cast<int>(roundf(steps))
                                      : min(static_cast<int>(__fadd_rn(steps, 8.5f)), 15) - 8;
  return block;
}

__device__ inline void StoreRowElement(DType dtype, void* base, size_t index, float value) {
  if (dtype == DType::kE4M3) {
    static_cast<uint8_t*>(base)[index] = FloatToE4M3(value);
    return;
  }
  if (!IsBlocks(dtype)) return StoreElement(dtype, base, index, value);
  const bool eight = dtype == DType::kQ8_0;
  if (!eight) value = TransformInWarp(value) * kToPage;
  const WarpBlock block = QuantizeInWarp(dtype, value);
  auto* const at = static_cast<uint8_t*>(base) + index / kWarpSize * BlockBytes(dtype);
  const int lane = static_cast<int>(index % kWarpSize);
  if (lane == 0) *reinterpret_cast<uint16_t*>(at) = block.scale;
  if (eight) {
    at[2 + lane] = static_cast<uint8_t>(block.quant);
  } else {
    const int high = __shfl_xor_sync(kAllLanes, block.quant, kWarpSize / 2);
    if (lane < kWarpSize / 2)
      at[2 + lane] = static_cast<uint8_t>((block.quant + 8) | (high + 8) << 4);
  }
}

__device__ inline float LoadRowElement(DType dtype, const void* base, size_t index) {
  if (dtype == DType::kE4M3) return E4M3Element(static_cast<const uint8_t*>(base)[index]);
  if (!IsBlocks(dtype)) return LoadElement(dtype, base, index);
  const float value = BlockElement(dtype, base, index);
  return dtype == DType::kQ8_0 ? value : TransformInWarp(value) * kFromPage;
}

// Rounds to the stored type and back.
__device__ inline float RoundRowElement(DType dtype, float value) {
  if (!IsBlocks(dtype)) return RoundElement(dtype, value);
  if (dtype == DType::kQ8_0) return QuantizeInWarp(dtype, value).Value();
  value = TransformInWarp(value) * kToPage;
  return TransformInWarp(QuantizeInWarp(dtype, value).Value()) * kFromPage;
}

// Any thread may load any element; slow for transformed types.
__device__ inline float LoadAnyElement(DType dtype, const void* base, size_t index) {
  if (!IsTransformed(dtype)) return LoadRowElement(dtype, base, index);
  const size_t block = index / kHadamardDim * kHadamardDim;
  float sum = 0.0f;
  for (int j = 0; j < kHadamardDim; ++j) {
    const float value = BlockElement(dtype, base, block + j);
    sum += __popc(static_cast<unsigned>(index - block) & j) % 2 == 0 ? value : -value;
  }
  return sum * kFromPage;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_PAGE_ROW_CUH_
