// The prefill attention kernel, compiled for AVX2: see prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The SIMD wrappers must come first.
// clang-format off
#include "kernels/cpu/attention/attention_simd_avx2.h"
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/prefill_panel_blocks-inl.h"
#include "kernels/cpu/attention/prefill_attention_panel-inl.h"
#include "kernels/cpu/attention/prefill_softmax-inl.h"
#include "kernels/cpu/attention/prefill_attention_tile-inl.h"
#include "kernels/cpu/attention/prefill_rank-inl.h"
// clang-format on

namespace hydrant::cpu {

PrefillTileKernel PrefillTileAvx2() { return &avx2::AttendTile; }

const RankKernel& RankAvx2() {
  static constexpr RankKernel kKernel = {&avx2::RankTile, &avx2::RankLaneWords, &avx2::KeysToLanes};
  return kKernel;
}

}  // namespace hydrant::cpu
