// Loads a block of sixteen rows with AVX-512: its quants, scales and minima. Included by files
// compiled for one instruction set each.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_AVX512_BLOCKS_INL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_AVX512_BLOCKS_INL_H_

#include <immintrin.h>

#include "kernels/cpu/matmul/matmul_kernels.h"

namespace hydrant::cpu {
namespace {

// Two bits of values 4s .. 4s + 3 of sixteen rows.
inline __m512i PairOf(const uint8_t* pairs, int s) {
  const __m512i plane = _mm512_loadu_si512(pairs + s / 4 * 64);
  return _mm512_and_si512(_mm512_srli_epi16(plane, s % 4 * 2), _mm512_set1_epi8(3));
}

// Values 4s .. 4s + 3 of sixteen rows, unsigned bytes.
template <DType dtype>
inline __m512i QuantsOf(const uint8_t* group, const GroupLayout& layout, int block, int s) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  const uint8_t* low = group + block * LowBytes(kTraits);
  if constexpr (kTraits.low_bits == 8) return _mm512_loadu_si512(low + s * 64);
  __m512i quants;
  if constexpr (kTraits.low_bits == 2) {
    quants = PairOf(low, s);
  } else {
    const __m512i vector = _mm512_loadu_si512(low + s % 4 * 64);
    quants = _mm512_and_si512(s < 4 ? vector : _mm512_srli_epi16(vector, 4), _mm512_set1_epi8(15));
  }
  const uint8_t* high = group + layout.high + block * HighBytes(kTraits);
  if constexpr (kTraits.high_bits == 1) {
    const __m512i bit =
        _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(high), s), _mm512_set1_epi8(1));
    quants = _mm512_or_si512(quants, _mm512_slli_epi16(bit, kTraits.low_bits));
  } else if constexpr (kTraits.high_bits == 2) {
    quants = _mm512_or_si512(quants, _mm512_slli_epi16(PairOf(high, s), 4));
  }
  if constexpr (kTraits.codebook != Codebook::kNone) {
    static constexpr CodeBytes kCodes = CodeBytesOf(kTraits);
    const __m512i codes =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kCodes.bytes)));
    quants = _mm512_shuffle_epi8(codes, quants);
  }
  return quants;
}

// The quants of all eight steps.
template <DType dtype>
inline void UnpackBlock(const uint8_t* group, const GroupLayout& layout, int block,
                        __m512i quants[8]) {
#pragma GCC unroll 8
  for (int s = 0; s < 8; ++s) quants[s] = QuantsOf<dtype>(group, layout, block, s);
}

inline __m512 LoadHalves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m512 LoadI8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

inline __m512i LoadBytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 2^(e - 128), as HalfE8M0ToFloat().
inline __m512 LoadExponents(const uint8_t* p) {
  const __m512i e = LoadBytes(p);
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
  const __m512i denormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  return _mm512_castsi512_ps(
      _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(e, one), denormal, usual));
}

// Scale of a block, or of half a block in formats with half scales.
template <DType dtype>
inline __m512 ScaleOf(const uint8_t* group, const GroupLayout& layout, int block, int half) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (kTraits.scale_bytes == 1) return LoadExponents(group + layout.scale + block * 16);
  if constexpr (!kTraits.super()) return LoadHalves(group + layout.scale + block * 32);
  const __m512 scale = LoadHalves(group + layout.scale + block / 8 * 32);
  const int sub_block = kTraits.halves ? block * 2 + half : block;
  const uint8_t* sub = group + layout.sub_scale + sub_block * 16;
  if constexpr (kTraits.sub == SubScales::kSigned) return _mm512_mul_ps(scale, LoadI8(sub));
  __m512i scales = LoadBytes(sub);
  if constexpr (kTraits.sub == SubScales::kNibbles)
    scales = _mm512_and_si512(scales, _mm512_set1_epi32(15));
  return _mm512_mul_ps(scale, _mm512_cvtepi32_ps(scales));
}

template <DType dtype>
inline __m512 MinOf(const uint8_t* group, const GroupLayout& layout, int block, int half) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (!kTraits.super()) return LoadHalves(group + layout.min + block * 32);
  const __m512 min = LoadHalves(group + layout.min + block / 8 * 32);
  const int sub_block = kTraits.halves ? block * 2 + half : block;
  __m512i mins;
  if constexpr (kTraits.sub == SubScales::kNibbles) {
    mins = _mm512_srli_epi32(LoadBytes(group + layout.sub_scale + sub_block * 16), 4);
  } else {
    mins = LoadBytes(group + layout.sub_min + sub_block * 16);
  }
  return _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(min, _mm512_cvtepi32_ps(mins)));
}

// y[row, the panel's rows], except rows past the last row of W.
inline void StoreRow(const PanelArgs& args, int row, int panel, __m512 values) {
  const int valid = args.rows - panel * kPanelRows;
  const __mmask16 mask = valid >= kPanelRows ? 0xffff : static_cast<__mmask16>((1u << valid) - 1);
  float* y = args.y + row * args.y_stride + panel * kPanelRows;
  if (args.accumulate) values = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), values);
  _mm512_mask_storeu_ps(y, mask, values);
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_AVX512_BLOCKS_INL_H_
