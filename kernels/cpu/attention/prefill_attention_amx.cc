// The prefill attention kernel, compiled for AMX with bf16 products: see
// prefill_attention_kernels.h.
#include "kernels/cpu/attention/prefill_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE amx_bf16
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/prefill_panel_blocks-inl.h"
#include "kernels/cpu/attention/prefill_attention_pairs-inl.h"
#include "kernels/cpu/isa/amx_tiles-inl.h"
#include "kernels/cpu/attention/prefill_attention_panel_amx-inl.h"
#include "kernels/cpu/attention/prefill_softmax_pairs-inl.h"
#include "kernels/cpu/attention/prefill_attention_tile-inl.h"
#include "kernels/cpu/attention/prefill_rank-inl.h"
// clang-format on

namespace hydrant::cpu {
namespace {

void AttendTile(const PrefillShape& shape, const PrefillTile& tile, float* scratch) {
  const NoDenormals no_denormals;
  amx_bf16::ConfigureTiles();
  amx_bf16::AttendTile(shape, tile, scratch);
  _tile_release();
}

void RankTile(const PrefillShape& shape, const PrefillTile& tile, float* scratch) {
  amx_bf16::ConfigureTiles();
  amx_bf16::RankTile(shape, tile, scratch);
  _tile_release();
}

}  // namespace

PrefillTileKernel PrefillTileAmx() { return &AttendTile; }

const RankKernel& RankAmx() {
  static constexpr RankKernel kKernel = {&RankTile, &amx_bf16::RankLaneWords,
                                         &amx_bf16::KeysToLanes};
  return kKernel;
}

void RoundKeysAmx(const float* keys, int rows, int head_dim, float* to) {
  amx_bf16::RoundTileKeys(keys, rows, head_dim, to);
}

void RoundValuesAmx(const float* values, int rows, int head_dim, float* to) {
  amx_bf16::RoundColumns(values, rows, head_dim, to);
}

}  // namespace hydrant::cpu
