// SIMD wrappers for the attention kernels, for AVX-512 (F, BW, DQ, VL). attention_simd_avx2.h has
// the same wrappers for AVX2; a kernel's -inl.h file is compiled once with each. Include only from
// *_avx512.cc files. All functions are always inlined and have a namespace of their own, so that
// the linker cannot pick AVX-512 code for another file.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_AVX512_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_AVX512_H_

// GCC 12 warns about the deliberately undefined operands of its own AVX-512 intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include "kernels/cpu/attention/attention_types.h"
#include "kernels/cpu/isa/unroll.h"

#define HYDRANT_SIMD_NAMESPACE avx512
#define HYDRANT_INLINE inline __attribute__((always_inline))

namespace hydrant::cpu::avx512 {

using Vec = __m512;
using IntVec = __m512i;
using Mask = __mmask16;

inline constexpr int kLanes = 16;
// Query heads that share one pass of decode attention in registers.
inline constexpr int kGroupTile = 4;
inline constexpr int kDimTile = 4;  // vectors of the value row in registers beside them
// Rows of a prefill panel in registers, two vectors each.
inline constexpr int kPanelTile = 12;

HYDRANT_INLINE Vec Zero() { return _mm512_setzero_ps(); }
HYDRANT_INLINE Vec Set(float x) { return _mm512_set1_ps(x); }
HYDRANT_INLINE Vec Load(const float* p) { return _mm512_loadu_ps(p); }
HYDRANT_INLINE void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
HYDRANT_INLINE Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
HYDRANT_INLINE Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
HYDRANT_INLINE Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
HYDRANT_INLINE Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
HYDRANT_INLINE Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
HYDRANT_INLINE Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
HYDRANT_INLINE Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

// Loads of page elements.
HYDRANT_INLINE Vec LoadAs(const float* p) { return Load(p); }
HYDRANT_INLINE Vec LoadAs(const F16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
HYDRANT_INLINE Vec LoadAs(const BF16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
// Read as a half, the byte is 2^8 too small; kE4M3Carry sets the rest of the
// half's exponent for NaN.
HYDRANT_INLINE Vec LoadAs(const E4M3* p) {
  const __m256i bytes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16(kE4M3Mask));
  const __m256i carried = _mm256_add_epi16(half, _mm256_set1_epi16(kE4M3Last));
  const __m256i nan = _mm256_and_si256(carried, _mm256_set1_epi16(kE4M3Carry));
  return Mul(_mm512_cvtph_ps(_mm256_or_si256(half, nan)), Set(kE4M3Scale));
}
// Elements first .. first + kLanes - 1 of a block.
HYDRANT_INLINE Vec ScaleOf(uint16_t half) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(half)));
}
HYDRANT_INLINE Vec LoadAs(const Q8Block* block, int first) {
  const __m128i quants = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block->quants + first));
  return Mul(ScaleOf(block->scale), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(quants)));
}
HYDRANT_INLINE Vec LoadAs(const Q4Block* block, int first) {
  const __m512i bytes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block->quants)));
  const __m512i quants =
      first == 0 ? _mm512_and_si512(bytes, _mm512_set1_epi32(15)) : _mm512_srli_epi32(bytes, 4);
  return Mul(ScaleOf(block->scale),
             _mm512_cvtepi32_ps(_mm512_sub_epi32(quants, _mm512_set1_epi32(8))));
}
// Narrowing rounds to nearest, ties to even; NaN stays NaN.
HYDRANT_INLINE void StoreAs(float* p, Vec v) { Store(p, v); }
HYDRANT_INLINE void StoreAs(F16* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
HYDRANT_INLINE void StoreAs(BF16* p, Vec v) {
  const IntVec bits = _mm512_castps_si512(v);
  const IntVec odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const IntVec rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const Mask nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const IntVec kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}

HYDRANT_INLINE Mask FirstN(int n) {
  return n >= kLanes ? Mask{0xffff} : static_cast<Mask>((1u << n) - 1);
}
HYDRANT_INLINE Vec MaskLoad(Mask m, const float* p) { return _mm512_maskz_loadu_ps(m, p); }
HYDRANT_INLINE void MaskStore(Mask m, float* p, Vec v) { _mm512_mask_storeu_ps(p, m, v); }
HYDRANT_INLINE Vec Select(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
HYDRANT_INLINE Mask Less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
HYDRANT_INLINE Mask Equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
HYDRANT_INLINE Mask And(Mask a, Mask b) { return a & b; }
HYDRANT_INLINE Mask Or(Mask a, Mask b) { return a | b; }

HYDRANT_INLINE IntVec IntSet(int32_t x) { return _mm512_set1_epi32(x); }
HYDRANT_INLINE IntVec IntIota() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
HYDRANT_INLINE IntVec IntAdd(IntVec a, IntVec b) { return _mm512_add_epi32(a, b); }
HYDRANT_INLINE IntVec IntMaskLoad(Mask m, const int32_t* p) {
  return _mm512_maskz_loadu_epi32(m, p);
}
HYDRANT_INLINE void IntStore(int32_t* p, IntVec v) { _mm512_storeu_si512(p, v); }
HYDRANT_INLINE Mask IntLess(IntVec a, IntVec b) { return _mm512_cmplt_epi32_mask(a, b); }
HYDRANT_INLINE IntVec IntSelect(Mask m, IntVec yes, IntVec no) {
  return _mm512_mask_blend_epi32(m, no, yes);
}
HYDRANT_INLINE IntVec IntLoad(const int32_t* p) { return _mm512_loadu_si512(p); }
HYDRANT_INLINE Vec ToFloat(IntVec v) { return _mm512_cvtepi32_ps(v); }

// e^x within 1.1 units in the last place; 0 below -87.3 (no denormals), and for -inf.
HYDRANT_INLINE Vec Exp(Vec x) {
  const Vec n =
      _mm512_roundscale_ps(Mul(x, Set(kLog2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  Vec r = _mm512_fnmadd_ps(n, Set(kLn2High), x);
  r = _mm512_fnmadd_ps(n, Set(kLn2Low), r);
  Vec p = Fma(Set(kExpC6), r, Set(kExpC5));
  p = Fma(p, r, Set(kExpC4));
  p = Fma(p, r, Set(kExpC3));
  p = Fma(p, r, Set(kExpC2));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
  const Mask zero = _mm512_cmp_ps_mask(x, Set(kExpLowest), _CMP_LT_OQ);
  return _mm512_mask_scalef_ps(Zero(), static_cast<Mask>(~zero), p, n);
}

// e^x within a relative error of 3e-6, for logits that have been rounded more coarsely: 2^f by a
// minimax polynomial. 0 where Exp() is 0.
HYDRANT_INLINE Vec RoughExp(Vec x) {
  const Vec n =
      _mm512_roundscale_ps(Mul(x, Set(kLog2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec f = _mm512_fmsub_ps(x, Set(kLog2E), n);
  Vec p = Fma(Set(0.0095701003f), f, Set(0.0559178628f));
  p = Fma(p, f, Set(0.240247449f));
  p = Fma(p, f, Set(0.693121814f));
  p = Fma(p, f, Set(0.999999261f));
  const Mask zero = _mm512_cmp_ps_mask(x, Set(kExpLowest), _CMP_LT_OQ);
  return _mm512_mask_scalef_ps(Zero(), static_cast<Mask>(~zero), p, n);
}

// 16-bit words. Each 128 bits hold four of a, rounded, then four of b; at least 0.
HYDRANT_INLINE IntVec WordsOf(Vec a, Vec b) {
  const IntVec words = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
  return _mm512_max_epi16(words, _mm512_setzero_si512());
}
HYDRANT_INLINE IntVec MaxWords(IntVec a, IntVec b) { return _mm512_max_epi16(a, b); }
HYDRANT_INLINE IntVec SubWords(IntVec a, IntVec b) { return _mm512_subs_epi16(a, b); }
// Words read as bf16.
HYDRANT_INLINE Vec EvenWeights(IntVec words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
HYDRANT_INLINE Vec OddWeights(IntVec words) {
  return _mm512_castsi512_ps(_mm512_and_si512(words, IntSet(-65536)));
}
// In each 128 bits the larger of words i and 4 + i, which are at least 0.
HYDRANT_INLINE IntVec LargestOfPair(IntVec words) {
  const IntVec turned = _mm512_shuffle_epi32(words, _MM_PERM_BADC);
  return _mm512_unpacklo_epi16(MaxWords(words, turned), _mm512_setzero_si512());
}
HYDRANT_INLINE Vec UnpackLow(Vec a, Vec b) { return _mm512_unpacklo_ps(a, b); }
HYDRANT_INLINE Vec UnpackHigh(Vec a, Vec b) { return _mm512_unpackhi_ps(a, b); }
// Broadcasts 128 bits.
HYDRANT_INLINE Vec Quad(const float* p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
HYDRANT_INLINE IntVec IntQuad(const int16_t* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

struct Sum {
  HYDRANT_INLINE Vec operator()(Vec a, Vec b) const { return Add(a, b); }
};
struct Largest {
  HYDRANT_INLINE Vec operator()(Vec a, Vec b) const { return Max(a, b); }
};
// Folds four vectors by Sum() or Largest(): lane 4 b + i of the result is the fold of the four
// lanes of block b of vector i.
template <typename Op>
HYDRANT_INLINE Vec FoldQuad(Op op, Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = op(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const Vec cd = op(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return op(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
}
// Joins kLanes / 4 folded quads: lane 4 q + i of the result is the fold of all
// lanes of vector i of quad q.
template <typename Op>
HYDRANT_INLINE Vec JoinQuads(Op op, const Vec* q) {
  const Vec q01 =
      op(_mm512_shuffle_f32x4(q[0], q[1], 0x88), _mm512_shuffle_f32x4(q[0], q[1], 0xdd));
  const Vec q23 =
      op(_mm512_shuffle_f32x4(q[2], q[3], 0x88), _mm512_shuffle_f32x4(q[2], q[3], 0xdd));
  return op(_mm512_shuffle_f32x4(q01, q23, 0x88), _mm512_shuffle_f32x4(q01, q23, 0xdd));
}
// Moves lane j of vector i to lane i of vector j.
HYDRANT_INLINE void Transpose(Vec (&rows)[kLanes]) {
  Vec quads[kLanes / 4][4];  // [g][k]: rows 4g to 4g + 3 of columns k, 4 + k, ...
  Unroll<kLanes / 4>(HYDRANT_UNROLLED(g) {
    const Vec low[2] = {_mm512_unpacklo_ps(rows[4 * g], rows[4 * g + 1]),
                        _mm512_unpacklo_ps(rows[4 * g + 2], rows[4 * g + 3])};
    const Vec high[2] = {_mm512_unpackhi_ps(rows[4 * g], rows[4 * g + 1]),
                         _mm512_unpackhi_ps(rows[4 * g + 2], rows[4 * g + 3])};
    quads[g][0] = _mm512_shuffle_ps(low[0], low[1], 0x44);
    quads[g][1] = _mm512_shuffle_ps(low[0], low[1], 0xee);
    quads[g][2] = _mm512_shuffle_ps(high[0], high[1], 0x44);
    quads[g][3] = _mm512_shuffle_ps(high[0], high[1], 0xee);
  });
  Unroll<4>(HYDRANT_UNROLLED(k) {
    const Vec low[2] = {_mm512_shuffle_f32x4(quads[0][k], quads[1][k], 0x44),
                        _mm512_shuffle_f32x4(quads[2][k], quads[3][k], 0x44)};
    const Vec high[2] = {_mm512_shuffle_f32x4(quads[0][k], quads[1][k], 0xee),
                         _mm512_shuffle_f32x4(quads[2][k], quads[3][k], 0xee)};
    rows[k] = _mm512_shuffle_f32x4(low[0], low[1], 0x88);
    rows[4 + k] = _mm512_shuffle_f32x4(low[0], low[1], 0xdd);
    rows[8 + k] = _mm512_shuffle_f32x4(high[0], high[1], 0x88);
    rows[12 + k] = _mm512_shuffle_f32x4(high[0], high[1], 0xdd);
  });
}
HYDRANT_INLINE float ReduceAdd(Vec v) { return _mm512_reduce_add_ps(v); }
HYDRANT_INLINE float ReduceMax(Vec v) { return _mm512_reduce_max_ps(v); }
HYDRANT_INLINE float FirstLane(Vec v) { return _mm512_cvtss_f32(v); }

}  // namespace hydrant::cpu::avx512

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SIMD_AVX512_H_
