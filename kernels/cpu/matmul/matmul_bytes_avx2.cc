// Block weights with AVX2 in 8 bits: bytes are multiplied in pairs and summed in 16 bits as long as
// no sum can overflow.
#include <immintrin.h>

#include "kernels/cpu/isa/unroll.h"
#include "kernels/cpu/matmul/matmul_bytes-inl.h"

namespace hydrant::cpu {
namespace {

// The steps of four values whose products are summed in 16 bits. Two of 128 * 127 do not overflow.
constexpr int StepsIn16Bits(const BlockTraits& traits) {
  const int largest = MinusOffset(traits) ? 128 : LargestQuant(traits);
  int steps = 8;
  while (steps > 1 && steps * 2 * largest * 127 > 32767) steps /= 2;
  return steps;
}
static_assert(StepsIn16Bits(BlockTraitsOf(DType::kQ4_0)) == 8);
static_assert(StepsIn16Bits(BlockTraitsOf(DType::kQ6_K)) == 2);
static_assert(StepsIn16Bits(BlockTraitsOf(DType::kQ8_0)) == 1);

// The quants of four values of eight rows, as PairsOf() takes them.
struct Quants {
  __m256i values, magnitudes;
};
template <DType dtype, int kStep>
HYDRANT_INLINE Quants QuantsOf(const PartOfBlock& part) {
  const __m256i quants = UnpackStep<dtype, kStep>(part.low, part.high).raw;
  if constexpr (!MinusOffset(BlockTraitsOf(dtype))) return {quants, quants};
  const __m256i values = _mm256_xor_si256(quants, _mm256_set1_epi8(-128));
  return {values, _mm256_abs_epi8(values)};
}

// The pairwise products of four values of eight rows, in 16 bits.
template <DType dtype>
HYDRANT_INLINE __m256i PairsOf(const Quants& quants, __m256i x) {
  if constexpr (!MinusOffset(BlockTraitsOf(dtype))) return _mm256_maddubs_epi16(quants.values, x);
  return _mm256_maddubs_epi16(quants.magnitudes, _mm256_sign_epi8(x, quants.values));
}

// Adds the products of steps kFirst .. kFirst + kRun - 1: summed in 16 bits, then in 32.
template <DType dtype, int kFirst, int kRun, bool kStarts, int kParts, int kRows>
HYDRANT_INLINE void AddRun(const PartOfBlock (&parts)[kParts], const uint8_t* x,
                           IntVec (&dots)[kParts][kRows]) {
  __m256i pairs[kParts][kRows];
  Unroll<kRun>(HYDRANT_UNROLLED(i) {
    constexpr int kStep = kFirst + decltype(i)::value;
    Quants quants[kParts];
    Unroll<kParts>(HYDRANT_UNROLLED(s) { quants[s] = QuantsOf<dtype, kStep>(parts[s]); });
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const auto* four = reinterpret_cast<const int32_t*>(x + r * kBlock + kStep * 4);
      const __m256i values = _mm256_set1_epi32(*four);
      Unroll<kParts>(HYDRANT_UNROLLED(s) {
        const __m256i products = PairsOf<dtype>(quants[s], values);
        pairs[s][r] = i == 0 ? products : _mm256_add_epi16(pairs[s][r], products);
      });
    });
  });
  Unroll<kParts>(HYDRANT_UNROLLED(s) {
    Unroll<kRows>(HYDRANT_UNROLLED(r) {
      const __m256i sums = _mm256_madd_epi16(pairs[s][r], _mm256_set1_epi16(1));
      dots[s][r].raw = kStarts ? sums : _mm256_add_epi32(dots[s][r].raw, sums);
    });
  });
}

struct Avx2 {
  static constexpr int PartsAtOnce(int /*rows*/, int parts) { return parts; }

  template <DType dtype, int kFirst, int kSteps, int kParts, int kRows>
  static HYDRANT_INLINE void SetDots(const PartOfBlock (&parts)[kParts], const uint8_t* x,
                                     IntVec (&dots)[kParts][kRows]) {
    constexpr int kMost = StepsIn16Bits(BlockTraitsOf(dtype)),
                  kRun = kMost < kSteps ? kMost : kSteps;
    Unroll<kSteps / kRun>(HYDRANT_UNROLLED(run) {
      constexpr int kRunFirst = kFirst + decltype(run)::value * kRun;
      AddRun<dtype, kRunFirst, kRun, decltype(run)::value == 0>(parts, x, dots);
    });
  }
};

template <DType dtype>
struct ByteRange {
  static void Run(const PanelArgs& args) { EveryTile<ByteTiles<Avx2, dtype>>(args); }
};

}  // namespace

const MatmulKernels& MatmulKernelsBytesAvx2() {
  static constexpr MatmulKernels kKernels = {.blocks_8 = ForFormat<ByteRange>,
                                             .quantize_8 = Quantize8};
  return kKernels;
}

}  // namespace hydrant::cpu
