// Reads and writes single elements (f32, f16, bf16) and vectors of page data.
#ifndef HYDRANT_KERNELS_CUDA_PAGE_ELEMENT_CUH_
#define HYDRANT_KERNELS_CUDA_PAGE_ELEMENT_CUH_

#include <cuda_runtime.h>

#include "kernels/arena_rows.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/dtype.h"

namespace hydrant::cuda {

// Rounds to nearest even.
__device__ inline void StoreElement(DType dtype, void* base, size_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(base)[index] = value;
  } else {
    const uint32_t pair =
        dtype == DType::kBF16 ? PackHalves<true>(value, 0.0f) : PackHalves<false>(value, 0.0f);
    static_cast<uint16_t*>(base)[index] = static_cast<uint16_t>(pair);
  }
}

__device__ inline float LoadElement(DType dtype, const void* base, size_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(base)[index];
  const uint32_t half = static_cast<const uint16_t*>(base)[index];
  return dtype == DType::kBF16 ? HalfOf<true>(half, 0) : HalfOf<false>(half, 0);
}

// For rows in a layer's arena.
__device__ inline float LoadElement(const ArenaRows& rows, size_t index) {
  return LoadElement(rows.dtype, rows.data, index);
}
__device__ inline void StoreElement(const MutableArenaRows& rows, size_t index, float value) {
  StoreElement(rows.dtype, rows.data, index, value);
}

// Bytes of 32 values. (TraitsOf() is not available in device code.)
__device__ constexpr int BlockBytes(DType dtype) { return dtype == DType::kQ8_0 ? 34 : 18; }

// An element of stored q8_0 or q4_0 blocks.
__device__ inline float BlockElement(DType dtype, const void* base, size_t index) {
  const auto* const block = static_cast<const uint8_t*>(base) + index / 32 * BlockBytes(dtype);
  const auto i = static_cast<int>(index % 32);
  const float scale = HalfOf<false>(*reinterpret_cast<const uint16_t*>(block), 0);
  const int quant = dtype == DType::kQ8_0 ? static_cast<int8_t>(block[2 + i])
                                          : (block[2 + i % 16] >> (i / 16 * 4) & 15) - 8;
  return scale * static_cast<float>(quant);
}

__device__ inline float E4M3Element(uint8_t byte) { return HalfOf<false>(E4M3ToHalves(byte), 0); }
// Eight e4m3 values as halves.
__device__ inline uint4 E4M3Halves(const uint2& bytes) {
  return make_uint4(E4M3ToHalves(bytes.x), E4M3ToHalves(bytes.x >> 16), E4M3ToHalves(bytes.y),
                    E4M3ToHalves(bytes.y >> 16));
}

// Rounds to the stored dtype and back.
__device__ inline float RoundElement(DType dtype, float value) {
  if (dtype == DType::kF32) return value;
  if (dtype == DType::kE4M3) return E4M3Element(FloatToE4M3(value));
  return dtype == DType::kBF16 ? HalfOf<true>(PackHalves<true>(value, 0.0f), 0)
                               : HalfOf<false>(PackHalves<false>(value, 0.0f), 0);
}

// Stores two elements; `index` is even.
__device__ inline void StorePair(DType dtype, void* base, size_t index, float first, float second) {
  if (dtype == DType::kF32) {
    *reinterpret_cast<float2*>(static_cast<float*>(base) + index) = make_float2(first, second);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(base) + index) =
        dtype == DType::kBF16 ? PackHalves<true>(first, second) : PackHalves<false>(first, second);
  }
}

// 16 bytes of a page as floats: 4 of f32, 8 of the 16-bit types.
template <DType kDType>
struct PageVector {
  static constexpr int kElements = kDType == DType::kF32 ? 4 : 8;
  uint4 bits;

  // Loads vector `index` from the base, in units of 16 bytes.
  __device__ void Load(const void* base, size_t index) {
    bits = static_cast<const uint4*>(base)[index];
  }
  // Loads element by element, for rows that are not a multiple of a vector; `left` elements exist.
  __device__ void LoadElements(const void* base, size_t from, int left) {
    uint32_t words[4] = {};
    if constexpr (kDType == DType::kF32) {
      for (int i = 0; i < kElements && i < left; ++i)
        words[i] = __float_as_uint(static_cast<const float*>(base)[from + i]);
    } else {
      for (int i = 0; i < kElements && i < left; ++i)
        words[i / 2] |= static_cast<uint32_t>(static_cast<const uint16_t*>(base)[from + i])
                        << (i % 2 * 16);
    }
    bits = make_uint4(words[0], words[1], words[2], words[3]);
  }
  __device__ void Clear() { bits = make_uint4(0, 0, 0, 0); }
  __device__ float operator[](int i) const {
    if constexpr (kDType == DType::kF32) {
      return __uint_as_float(Word(i));
    } else {
      return HalfOf<kDType == DType::kBF16>(Word(i / 2), i % 2);
    }
  }

 private:
  // `i` is a constant in unrolled loops.
  __device__ uint32_t Word(int i) const {
    return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w;
  }
};

// The same for e4m3: 8 elements in 8 bytes.
template <>
struct PageVector<DType::kE4M3> : PageVector<DType::kF16> {
  __device__ void Load(const void* base, size_t index) {
    bits = E4M3Halves(static_cast<const uint2*>(base)[index]);
  }
};

// The same for quantized types: 8 elements of one block.
template <DType kDType>
struct BlockVector {
  static constexpr int kElements = 8;
  float scale;
  uint32_t words[2];  // one byte per element; for q4_0 one nibble of it

  __device__ void Load(const void* base, size_t index) {
    const auto* const block = static_cast<const uint8_t*>(base) + index / 4 * BlockBytes(kDType);
    const auto first = static_cast<int>(index % 4) * kElements;
    const auto* const halves = reinterpret_cast<const uint16_t*>(
        block + 2 + (kDType == DType::kQ8_0 ? first : first % 16));
    scale = HalfOf<false>(*reinterpret_cast<const uint16_t*>(block), 0);
    words[0] = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
    words[1] = halves[2] | static_cast<uint32_t>(halves[3]) << 16;
    if constexpr (kDType == DType::kQ4_0) {
      for (uint32_t& word : words) word = (word >> (first / 16 * 4)) & 0x0f0f0f0fu;
    }
  }
  // Rows are whole blocks.
  __device__ void LoadElements(const void* base, size_t from, int) { Load(base, from / kElements); }
  __device__ void Clear() {
    scale = 0.0f;
    words[0] = words[1] = 0;
  }
  __device__ float operator[](int i) const {
    const uint32_t byte = words[i / 4] >> (i % 4 * 8) & 255u;
    const int quant =
        kDType == DType::kQ8_0 ? static_cast<int8_t>(byte) : static_cast<int>(byte) - 8;
    return scale * static_cast<float>(quant);
  }
};
template <>
struct PageVector<DType::kQ8_0> : BlockVector<DType::kQ8_0> {};
template <>
struct PageVector<DType::kQ4_0> : BlockVector<DType::kQ4_0> {};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_PAGE_ELEMENT_CUH_
