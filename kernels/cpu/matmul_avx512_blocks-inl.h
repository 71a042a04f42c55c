// Reading a block of sixteen rows with AVX-512: its quants, scales and minima. Included by files
// compiled for one instruction set each.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_AVX512_BLOCKS_INL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_AVX512_BLOCKS_INL_H_

#include <immintrin.h>

#include "kernels/cpu/matmul_kernels.h"

namespace hydrant::cpu {
namespace {

// quants[s]: values 4s .. 4s + 3 of sixteen rows, unsigned bytes.
template <DType dtype>
inline void UnpackBlock(const uint8_t* group, const GroupLayout& layout, int block,
                        __m512i quants[8]) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const uint8_t* low = group + block * LowBytes(kTraits);
  if constexpr (kTraits.low_bits == 8) {
    for (int s = 0; s < 8; ++s) quants[s] = _mm512_loadu_si512(low + s * 64);
    return;
  }
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int s = 0; s < 4; ++s) {
    const __m512i vector = _mm512_loadu_si512(low + s * 64);
    quants[s] = _mm512_and_si512(vector, nibble);
    quants[s + 4] = _mm512_and_si512(_mm512_srli_epi16(vector, 4), nibble);
  }
  const uint8_t* high = group + layout.high + block * HighBytes(kTraits);
  if constexpr (kTraits.high_bits == 1) {
    const __m512i plane = _mm512_loadu_si512(high);
    for (int s = 0; s < 8; ++s) {
      const __m512i bit = _mm512_and_si512(_mm512_srli_epi16(plane, s), _mm512_set1_epi8(1));
      quants[s] = _mm512_or_si512(quants[s], _mm512_slli_epi16(bit, 4));
    }
  } else if constexpr (kTraits.high_bits == 2) {
    for (int s = 0; s < 8; ++s) {
      const __m512i plane = _mm512_loadu_si512(high + s / 4 * 64);
      const __m512i pair =
          _mm512_and_si512(_mm512_srli_epi16(plane, s % 4 * 2), _mm512_set1_epi8(3));
      quants[s] = _mm512_or_si512(quants[s], _mm512_slli_epi16(pair, 4));
    }
  }
}

inline __m512 LoadHalves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m512 LoadU8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline __m512 LoadI8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// Of a block, or of half a block where the format has a scale for each.
template <DType dtype>
inline __m512 ScaleOf(const uint8_t* group, const GroupLayout& layout, int block, int half) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (!kTraits.super) return LoadHalves(group + layout.scale + block * 32);
  const __m512 scale = LoadHalves(group + layout.scale + block / 8 * 32);
  const uint8_t* sub = group + layout.sub_scale;
  if constexpr (kTraits.halves) return _mm512_mul_ps(scale, LoadI8(sub + (block * 2 + half) * 16));
  return _mm512_mul_ps(scale, LoadU8(sub + block * 16));
}

template <DType dtype>
inline __m512 MinOf(const uint8_t* group, const GroupLayout& layout, int block) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (!kTraits.super) return LoadHalves(group + layout.min + block * 32);
  const __m512 min = LoadHalves(group + layout.min + block / 8 * 32);
  const __m512 product = _mm512_mul_ps(min, LoadU8(group + layout.sub_min + block * 16));
  return _mm512_sub_ps(_mm512_setzero_ps(), product);
}

// y[row, the panel's rows], leaving out what lies past the last row of W.
inline void StoreRow(const PanelArgs& args, int row, int panel, __m512 values) {
  const int valid = args.rows - panel * kPanelRows;
  const __mmask16 mask = valid >= kPanelRows ? 0xffff : static_cast<__mmask16>((1u << valid) - 1);
  float* y = args.y + row * args.y_stride + panel * kPanelRows;
  if (args.accumulate) values = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), values);
  _mm512_mask_storeu_ps(y, mask, values);
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_AVX512_BLOCKS_INL_H_
