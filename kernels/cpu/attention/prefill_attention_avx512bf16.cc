// The prefill attention kernel, compiled for AVX-512 with bf16 products: see
// prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The SIMD wrappers must come first; code built on them here has a namespace of its own.
// clang-format off
#include "kernels/cpu/attention/attention_simd_avx512.h"
#undef HYDRANT_SIMD_NAMESPACE
#define HYDRANT_SIMD_NAMESPACE avx512bf16
namespace hydrant::cpu::avx512bf16 {
using namespace avx512;  // NOLINT(google-build-using-namespace): the SIMD wrappers
}
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/prefill_panel_blocks-inl.h"
#include "kernels/cpu/attention/prefill_attention_pairs-inl.h"
#include "kernels/cpu/attention/prefill_attention_panel_bf16-inl.h"
#include "kernels/cpu/attention/prefill_softmax_pairs-inl.h"
#include "kernels/cpu/attention/prefill_attention_tile-inl.h"
#include "kernels/cpu/attention/prefill_rank-inl.h"
// clang-format on

namespace hydrant::cpu {
namespace {

void AttendTile(const PrefillShape& shape, const PrefillTile& tile, float* scratch) {
  const avx512bf16::NoDenormals no_denormals;
  avx512bf16::AttendTile(shape, tile, scratch);
}

}  // namespace

PrefillTileKernel PrefillTileAvx512Bf16() { return &AttendTile; }

const RankKernel& RankAvx512Bf16() {
  static constexpr RankKernel kKernel = {&avx512bf16::RankTile, &avx512bf16::RankLaneWords,
                                         &avx512bf16::KeysToLanes};
  return kKernel;
}

}  // namespace hydrant::cpu
