// Loads a block of eight of a group's sixteen rows with AVX2: its quants, scales and minima.
// Included by files compiled for one instruction set each.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_AVX2_BLOCKS_INL_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_AVX2_BLOCKS_INL_H_

#include <immintrin.h>

#include "kernels/cpu/matmul/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

inline __m256i Load32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Two bits of values 4 step .. 4 step + 3 of eight rows.
inline __m256i PairOf(const uint8_t* pairs, int step) {
  return _mm256_and_si256(_mm256_srli_epi16(Load32(pairs + step / 4 * 64), step % 4 * 2),
                          _mm256_set1_epi8(3));
}

// The unsigned quants of values 4 step .. 4 step + 3 of eight rows: one byte each, four to a row.
// `low` and `high` point at the eight rows' half of the block's vectors.
template <DType dtype>
inline __m256i UnpackStep(const uint8_t* low, const uint8_t* high, int step) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (kTraits.low_bits == 8) return Load32(low + step * 64);
  __m256i quants;
  if constexpr (kTraits.low_bits == 2) {
    quants = PairOf(low, step);
  } else {
    const __m256i vector = Load32(low + step % 4 * 64);
    quants =
        _mm256_and_si256(step < 4 ? vector : _mm256_srli_epi16(vector, 4), _mm256_set1_epi8(15));
  }
  if constexpr (kTraits.high_bits == 1) {
    const __m256i bit =
        _mm256_and_si256(_mm256_srli_epi16(Load32(high), step), _mm256_set1_epi8(1));
    quants = _mm256_or_si256(quants, _mm256_slli_epi16(bit, kTraits.low_bits));
  } else if constexpr (kTraits.high_bits == 2) {
    quants = _mm256_or_si256(quants, _mm256_slli_epi16(PairOf(high, step), 4));
  }
  if constexpr (kTraits.codebook != Codebook::kNone) {
    static constexpr CodeBytes kCodes = CodeBytesOf(kTraits);
    const __m128i codes = _mm_load_si128(reinterpret_cast<const __m128i*>(kCodes.bytes));
    quants = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codes), quants);
  }
  return quants;
}

inline __m256 LoadHalves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m256 LoadU8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline __m256 LoadI8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// 2^(e - 128), as HalfE8M0ToFloat().
inline __m256 LoadExponents(const uint8_t* p) {
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i usual = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
  const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(denormal, usual, _mm256_cmpgt_epi32(e, one)));
}

// The low four bits of bytes; LoadHighNibbles loads the high ones.
inline __m256 LoadLowNibbles(const uint8_t* p) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)));
}
inline __m256 LoadHighNibbles(const uint8_t* p) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4));
}

// Scale of eight rows (from row 8 * side of the group) in a block, or in half a block.
template <DType dtype>
inline __m256 ScaleOf(const uint8_t* group, const GroupLayout& layout, int block, int half,
                      int side) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (kTraits.scale_bytes == 1)
    return LoadExponents(group + layout.scale + block * 16 + side * 8);
  if constexpr (!kTraits.super()) return LoadHalves(group + layout.scale + block * 32 + side * 16);
  const __m256 scale = LoadHalves(group + layout.scale + block / 8 * 32 + side * 16);
  const int sub_block = kTraits.halves ? block * 2 + half : block;
  const uint8_t* sub = group + layout.sub_scale + sub_block * 16 + side * 8;
  if constexpr (kTraits.sub == SubScales::kSigned) return _mm256_mul_ps(scale, LoadI8(sub));
  if constexpr (kTraits.sub == SubScales::kNibbles)
    return _mm256_mul_ps(scale, LoadLowNibbles(sub));
  return _mm256_mul_ps(scale, LoadU8(sub));
}

template <DType dtype>
inline __m256 MinOf(const uint8_t* group, const GroupLayout& layout, int block, int half,
                    int side) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if constexpr (!kTraits.super()) return LoadHalves(group + layout.min + block * 32 + side * 16);
  const __m256 min = LoadHalves(group + layout.min + block / 8 * 32 + side * 16);
  const int sub_block = kTraits.halves ? block * 2 + half : block;
  const size_t at = sub_block * 16 + side * 8;
  const __m256 sub = kTraits.sub == SubScales::kNibbles
                         ? LoadHighNibbles(group + layout.sub_scale + at)
                         : LoadU8(group + layout.sub_min + at);
  return _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(min, sub));
}

// The 32 values of a row's block.
struct FourVectors {
  __m256 v[4];
};
inline FourVectors LoadBlock(const float* x) {
  return {{_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
           _mm256_loadu_ps(x + 24)}};
}
// The scale with which no value exceeds `limit`.
inline BlockScale ScaleOfBlock(const FourVectors& values, float limit) {
  __m256 peak = _mm256_setzero_ps();
  __m256 unordered = _mm256_setzero_ps();
  for (const __m256 v : values.v) {
    peak = _mm256_max_ps(peak, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v));
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  }
  float peaks[8];
  _mm256_storeu_ps(peaks, peak);
  return BlockScaleOf(peaks, 8, _mm256_movemask_ps(unordered) != 0, limit);
}
inline __m256i RoundedTo(const BlockScale& s, __m256 values) {
  return s.finite ? _mm256_cvtps_epi32(_mm256_mul_ps(values, _mm256_set1_ps(s.inverse)))
                  : _mm256_setzero_si256();
}
inline int32_t SumOfLanes(__m256i ints) {
  int32_t lanes[8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), ints);
  int32_t sum = 0;
  for (const int32_t lane : lanes) sum += lane;
  return sum;
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_AVX2_BLOCKS_INL_H_
