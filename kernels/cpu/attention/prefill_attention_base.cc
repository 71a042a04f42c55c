// The prefill attention kernel, compiled for the minimum of the backend
// (kernels/cpu/isa/isa.h): see prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE base
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/prefill_panel_blocks-inl.h"
#include "kernels/cpu/attention/prefill_attention_panel-inl.h"
#include "kernels/cpu/attention/prefill_softmax-inl.h"
#include "kernels/cpu/attention/prefill_attention_tile-inl.h"
#include "kernels/cpu/attention/prefill_rank-inl.h"
// clang-format on

namespace hydrant::cpu {

PrefillTileKernel PrefillTileBase() { return &base::AttendTile; }

const RankKernel& RankBase() {
  static constexpr RankKernel kKernel = {&base::RankTile, &base::RankLaneWords, &base::KeysToLanes};
  return kKernel;
}

}  // namespace hydrant::cpu
