// SIMD wrappers for the attention kernels, for AVX2 with FMA and F16C: see attention_simd_avx512.h.
// Include only from *_avx2.cc files.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_AVX2_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/attention/attention_types.h"
#include "kernels/cpu/isa/unroll.h"

#define HYDRANT_SIMD_NAMESPACE avx2
#define HYDRANT_INLINE inline __attribute__((always_inline))

namespace hydrant::cpu::avx2 {

using Vec = __m256;
using IntVec = __m256i;
using Mask = __m256;  // all bits of a lane, or none

inline constexpr int kLanes = 8;
inline constexpr int kGroupTile = 3;
inline constexpr int kDimTile = 4;
inline constexpr int kPanelTile = 6;

HYDRANT_INLINE Vec Zero() { return _mm256_setzero_ps(); }
HYDRANT_INLINE Vec Set(float x) { return _mm256_set1_ps(x); }
HYDRANT_INLINE Vec Load(const float* p) { return _mm256_loadu_ps(p); }
HYDRANT_INLINE void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
HYDRANT_INLINE Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
HYDRANT_INLINE Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
HYDRANT_INLINE Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
HYDRANT_INLINE Vec Div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
HYDRANT_INLINE Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
HYDRANT_INLINE Vec Min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
HYDRANT_INLINE Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

HYDRANT_INLINE Vec LoadAs(const float* p) { return Load(p); }
HYDRANT_INLINE Vec LoadAs(const F16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
HYDRANT_INLINE Vec LoadAs(const BF16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
HYDRANT_INLINE Vec LoadAs(const E4M3* p) {
  const __m128i bytes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i half = _mm_and_si128(_mm_slli_epi16(bytes, 7), _mm_set1_epi16(kE4M3Mask));
  const __m128i carried = _mm_add_epi16(half, _mm_set1_epi16(kE4M3Last));
  const __m128i nan = _mm_and_si128(carried, _mm_set1_epi16(kE4M3Carry));
  return Mul(_mm256_cvtph_ps(_mm_or_si128(half, nan)), Set(kE4M3Scale));
}
HYDRANT_INLINE Vec ScaleOf(uint16_t half) {
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(half)));
}
HYDRANT_INLINE Vec LoadAs(const Q8Block* block, int first) {
  const __m128i quants = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block->quants + first));
  return Mul(ScaleOf(block->scale), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(quants)));
}
HYDRANT_INLINE Vec LoadAs(const Q4Block* block, int first) {
  const __m256i bytes = _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block->quants + first % 16)));
  const __m256i quants =
      first < 16 ? _mm256_and_si256(bytes, _mm256_set1_epi32(15)) : _mm256_srli_epi32(bytes, 4);
  return Mul(ScaleOf(block->scale),
             _mm256_cvtepi32_ps(_mm256_sub_epi32(quants, _mm256_set1_epi32(8))));
}
HYDRANT_INLINE void StoreAs(float* p, Vec v) { Store(p, v); }
HYDRANT_INLINE void StoreAs(F16* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
HYDRANT_INLINE void StoreAs(BF16* p, Vec v) {
  const IntVec bits = _mm256_castps_si256(v);
  const IntVec odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const IntVec rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const IntVec quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const IntVec nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const IntVec high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
}

HYDRANT_INLINE IntVec IntSet(int32_t x) { return _mm256_set1_epi32(x); }
HYDRANT_INLINE IntVec IntIota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
HYDRANT_INLINE IntVec IntAdd(IntVec a, IntVec b) { return _mm256_add_epi32(a, b); }

HYDRANT_INLINE Mask FirstN(int n) {
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(IntSet(n), IntIota()));
}
HYDRANT_INLINE Vec MaskLoad(Mask m, const float* p) {
  return _mm256_maskload_ps(p, _mm256_castps_si256(m));
}
HYDRANT_INLINE void MaskStore(Mask m, float* p, Vec v) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(m), v);
}
HYDRANT_INLINE Vec Select(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
HYDRANT_INLINE Mask Less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
HYDRANT_INLINE Mask Equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
HYDRANT_INLINE Mask And(Mask a, Mask b) { return _mm256_and_ps(a, b); }
HYDRANT_INLINE Mask Or(Mask a, Mask b) { return _mm256_or_ps(a, b); }

HYDRANT_INLINE IntVec IntMaskLoad(Mask m, const int32_t* p) {
  return _mm256_maskload_epi32(p, _mm256_castps_si256(m));
}
HYDRANT_INLINE void IntStore(int32_t* p, IntVec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
HYDRANT_INLINE Mask IntLess(IntVec a, IntVec b) {
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a));
}
HYDRANT_INLINE IntVec IntSelect(Mask m, IntVec yes, IntVec no) {
  return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m));
}
HYDRANT_INLINE IntVec IntLoad(const int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
HYDRANT_INLINE Vec ToFloat(IntVec v) { return _mm256_cvtepi32_ps(v); }

HYDRANT_INLINE Vec Exp(Vec x) {
  // min and max return their second operand if one is NaN, so NaN passes through.
  const Vec clamped = _mm256_min_ps(Set(kExpHighest), Max(Set(kExpLowest), x));
  const Vec n =
      _mm256_round_ps(Mul(clamped, Set(kLog2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Vec r = _mm256_fnmadd_ps(n, Set(kLn2High), clamped);
  r = _mm256_fnmadd_ps(n, Set(kLn2Low), r);
  Vec p = Fma(Set(kExpC6), r, Set(kExpC5));
  p = Fma(p, r, Set(kExpC4));
  p = Fma(p, r, Set(kExpC3));
  p = Fma(p, r, Set(kExpC2));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
  const IntVec exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), IntSet(127)), 23);
  return _mm256_andnot_ps(Less(x, Set(kExpLowest)), Mul(p, _mm256_castsi256_ps(exponent)));
}

HYDRANT_INLINE IntVec WordsOf(Vec a, Vec b) {
  const IntVec words = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
  return _mm256_max_epi16(words, _mm256_setzero_si256());
}
HYDRANT_INLINE IntVec MaxWords(IntVec a, IntVec b) { return _mm256_max_epi16(a, b); }
HYDRANT_INLINE IntVec SubWords(IntVec a, IntVec b) { return _mm256_subs_epi16(a, b); }
HYDRANT_INLINE Vec EvenWeights(IntVec words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
HYDRANT_INLINE Vec OddWeights(IntVec words) {
  return _mm256_castsi256_ps(_mm256_and_si256(words, IntSet(-65536)));
}
HYDRANT_INLINE IntVec LargestOfPair(IntVec words) {
  const IntVec turned = _mm256_shuffle_epi32(words, 0x4e);
  return _mm256_unpacklo_epi16(MaxWords(words, turned), _mm256_setzero_si256());
}
HYDRANT_INLINE Vec UnpackLow(Vec a, Vec b) { return _mm256_unpacklo_ps(a, b); }
HYDRANT_INLINE Vec UnpackHigh(Vec a, Vec b) { return _mm256_unpackhi_ps(a, b); }
HYDRANT_INLINE Vec Quad(const float* p) {
  return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
}
HYDRANT_INLINE IntVec IntQuad(const int16_t* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

struct Sum {
  HYDRANT_INLINE Vec operator()(Vec a, Vec b) const { return Add(a, b); }
};
struct Largest {
  HYDRANT_INLINE Vec operator()(Vec a, Vec b) const { return Max(a, b); }
};
template <typename Op>
HYDRANT_INLINE Vec FoldQuad(Op op, Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = op(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const Vec cd = op(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  return op(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
}
template <typename Op>
HYDRANT_INLINE Vec JoinQuads(Op op, const Vec* q) {
  return op(_mm256_permute2f128_ps(q[0], q[1], 0x20), _mm256_permute2f128_ps(q[0], q[1], 0x31));
}
HYDRANT_INLINE void Transpose(Vec (&rows)[kLanes]) {
  Vec quads[kLanes / 4][4];  // [g][k]: rows 4g to 4g + 3 of columns k and 4 + k
  Unroll<kLanes / 4>(HYDRANT_UNROLLED(g) {
    const Vec low[2] = {_mm256_unpacklo_ps(rows[4 * g], rows[4 * g + 1]),
                        _mm256_unpacklo_ps(rows[4 * g + 2], rows[4 * g + 3])};
    const Vec high[2] = {_mm256_unpackhi_ps(rows[4 * g], rows[4 * g + 1]),
                         _mm256_unpackhi_ps(rows[4 * g + 2], rows[4 * g + 3])};
    quads[g][0] = _mm256_shuffle_ps(low[0], low[1], 0x44);
    quads[g][1] = _mm256_shuffle_ps(low[0], low[1], 0xee);
    quads[g][2] = _mm256_shuffle_ps(high[0], high[1], 0x44);
    quads[g][3] = _mm256_shuffle_ps(high[0], high[1], 0xee);
  });
  Unroll<4>(HYDRANT_UNROLLED(k) {
    rows[k] = _mm256_permute2f128_ps(quads[0][k], quads[1][k], 0x20);
    rows[4 + k] = _mm256_permute2f128_ps(quads[0][k], quads[1][k], 0x31);
  });
}
HYDRANT_INLINE float FirstLane(Vec v) { return _mm256_cvtss_f32(v); }
HYDRANT_INLINE float ReduceAdd(Vec v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
HYDRANT_INLINE float ReduceMax(Vec v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

}  // namespace hydrant::cpu::avx2

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_AVX2_H_
