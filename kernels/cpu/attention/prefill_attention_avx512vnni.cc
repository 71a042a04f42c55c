// The prefill attention kernel, compiled for AVX-512 with 8-bit products: see
// prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE avx512vnni
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/isa/byte_dots.h"
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/prefill_panel_blocks-inl.h"
#include "kernels/cpu/attention/prefill_attention_bytes-inl.h"
#include "kernels/cpu/attention/prefill_attention_panel_i8-inl.h"
#include "kernels/cpu/attention/prefill_softmax-inl.h"
#include "kernels/cpu/attention/prefill_attention_tile-inl.h"
#include "kernels/cpu/attention/prefill_rank-inl.h"
// clang-format on

namespace hydrant::cpu {

PrefillTileKernel PrefillTileAvx512Vnni() { return &avx512vnni::AttendTile; }

const RankKernel& RankAvx512Vnni() {
  static constexpr RankKernel kKernel = {&avx512vnni::RankTile, &avx512vnni::RankLaneWords,
                                         &avx512vnni::KeysToLanes};
  return kKernel;
}

void RoundKeysAvx512Vnni(const float* keys, int rows, int head_dim, float* to) {
  avx512vnni::RoundKeys(keys, rows, head_dim, to);
}

void RoundValuesAvx512Vnni(const float* values, int rows, int head_dim, float* to) {
  avx512vnni::RoundValues(values, rows, head_dim, to);
}

}  // namespace hydrant::cpu
