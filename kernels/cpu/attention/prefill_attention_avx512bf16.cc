// The prefill attention kernel, compiled for AVX-512 with bf16 products: see
// prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE avx512bf16
#include "kernels/cpu/attention/attention_simd.h"
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
  const NoDenormals no_denormals;
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
