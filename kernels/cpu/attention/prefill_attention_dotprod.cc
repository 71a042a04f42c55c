// The prefill attention kernels in 8 bits, compiled for ARM's dot products of bytes: see
// prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE dotprod
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/prefill_panel_blocks-inl.h"
#include "kernels/cpu/attention/byte_lanes-inl.h"
#include "kernels/cpu/attention/prefill_attention_bytes-inl.h"
#include "kernels/cpu/attention/prefill_attention_panel_i8-inl.h"
#include "kernels/cpu/attention/prefill_softmax-inl.h"
#include "kernels/cpu/attention/prefill_attention_tile-inl.h"
#include "kernels/cpu/attention/prefill_rank-inl.h"
// clang-format on

namespace hydrant::cpu {

const ByteKernels& ByteKernelsDotProd() {
  static constexpr ByteKernels kKernels = {
      &dotprod::AttendTile,
      &dotprod::RoundKeys,
      &dotprod::RoundValues,
      {&dotprod::RankTile, &dotprod::RankLaneWords, &dotprod::KeysToLanes}};
  return kKernels;
}

}  // namespace hydrant::cpu
