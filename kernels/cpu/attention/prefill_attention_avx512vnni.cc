// The prefill attention kernels in 8 bits, compiled for AVX-512 with 8-bit products: see
// prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE avx512vnni
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

const ByteKernels& ByteKernelsAvx512Vnni() {
  static constexpr ByteKernels kKernels = {
      &avx512vnni::AttendTile,
      &avx512vnni::RoundKeys,
      &avx512vnni::RoundValues,
      {&avx512vnni::RankTile, &avx512vnni::RankLaneWords, &avx512vnni::KeysToLanes}};
  return kKernels;
}

}  // namespace hydrant::cpu
