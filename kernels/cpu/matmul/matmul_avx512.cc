// Float panels with AVX-512.
#include <immintrin.h>

#include "kernels/cpu/matmul/matmul_dense-inl.h"

namespace hydrant::cpu {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16;
  static F Zero() { return _mm512_setzero_ps(); }
  static F Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static F LoadF16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F LoadF8(const uint8_t* p) {
    const __m256i bytes =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i magnitude =
        _mm256_slli_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(0x7f)), 7);
    const __m256i sign = _mm256_slli_epi16(_mm256_srli_epi16(bytes, 7), 15);
    return _mm512_cvtph_ps(_mm256_or_si256(sign, magnitude));
  }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static void LoadBf16Pair(const uint16_t* p, F* even, F* odd) {
    const __m512i pairs = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *odd = _mm512_castsi512_ps(
        _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
};

}  // namespace

const MatmulKernels& MatmulKernelsAvx512() {
  static constexpr MatmulKernels kKernels = {.f32 = Dense<Avx512, PanelFormat::kF32>,
                                             .f16 = Dense<Avx512, PanelFormat::kF16>,
                                             .bf16_widened = Dense<Avx512, PanelFormat::kBF16>,
                                             .f8 = Dense<Avx512, PanelFormat::kF8>};
  return kKernels;
}

}  // namespace hydrant::cpu
