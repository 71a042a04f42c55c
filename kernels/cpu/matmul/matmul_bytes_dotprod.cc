// Block weights with ARM's dot products of bytes (FEAT_DotProd): a vector holds four values of each
// of four rows, and one instruction multiplies it by four values of a row of x.
#include <arm_neon.h>

#include "kernels/cpu/isa/unroll.h"
#include "kernels/cpu/matmul/matmul_bytes-inl.h"

namespace hydrant::cpu {
namespace {

template <DType dtype, int kStep>
HYDRANT_INLINE int8x16_t SignedQuants(const PartOfBlock& part) {
  const uint8x16_t quants = UnpackStep<dtype, kStep>(part.low, part.high).raw;
  if constexpr (!MinusOffset(BlockTraitsOf(dtype))) return vreinterpretq_s8_u8(quants);
  return vreinterpretq_s8_u8(veorq_u8(quants, vdupq_n_u8(128)));
}

struct DotProd {
  // 32 registers: with three rows or more the integer sums of half a panel.
  static constexpr int PartsAtOnce(int rows, int /*parts*/) {
    return rows <= 2 ? kSides : kSides / 2;
  }

  template <DType dtype, int kFirst, int kSteps, int kParts, int kRows>
  static HYDRANT_INLINE void SetDots(const PartOfBlock (&parts)[kParts], const uint8_t* x,
                                     IntVec (&dots)[kParts][kRows]) {
    constexpr int kStepsOfVector = 4;
    Unroll<kParts>(HYDRANT_UNROLLED(s) {
      Unroll<kRows>(HYDRANT_UNROLLED(r) { dots[s][r] = hn::Zero(kInts); });
    });
    Unroll<kSteps>(HYDRANT_UNROLLED(i) {
      constexpr int kStep = kFirst + decltype(i)::value, kVector = kStep / kStepsOfVector;
      int8x16_t quants[kParts];
      Unroll<kParts>(HYDRANT_UNROLLED(s) { quants[s] = SignedQuants<dtype, kStep>(parts[s]); });
      Unroll<kRows>(HYDRANT_UNROLLED(r) {
        const auto* sixteen = reinterpret_cast<const int8_t*>(x + r * kBlock + kVector * 16);
        const int8x16_t values = vld1q_s8(sixteen);
        Unroll<kParts>(HYDRANT_UNROLLED(s) {
          dots[s][r].raw =
              vdotq_laneq_s32(dots[s][r].raw, quants[s], values, kStep % kStepsOfVector);
        });
      });
    });
  }
};

template <DType dtype>
struct ByteRange {
  static void Run(const PanelArgs& args) { EveryTile<ByteTiles<DotProd, dtype>>(args); }
};

}  // namespace

const MatmulKernels& MatmulKernelsBytesDotProd() {
  static constexpr MatmulKernels kKernels = {.blocks_8 = ForFormat<ByteRange>,
                                             .quantize_8 = Quantize8};
  return kKernels;
}

}  // namespace hydrant::cpu
