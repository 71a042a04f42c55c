// The prefill attention kernel, compiled for AVX-512: see prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE avx512
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/prefill_panel_blocks-inl.h"
#include "kernels/cpu/attention/prefill_attention_panel-inl.h"
#include "kernels/cpu/attention/prefill_softmax-inl.h"
#include "kernels/cpu/attention/prefill_attention_tile-inl.h"
#include "kernels/cpu/attention/prefill_rank-inl.h"
// clang-format on

namespace hydrant::cpu {

PrefillTileKernel PrefillTileAvx512() { return &avx512::AttendTile; }

const RankKernel& RankAvx512() {
  static constexpr RankKernel kKernel = {&avx512::RankTile, &avx512::RankLaneWords,
                                         &avx512::KeysToLanes};
  return kKernel;
}

}  // namespace hydrant::cpu
