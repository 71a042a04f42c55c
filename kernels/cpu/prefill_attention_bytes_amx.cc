// Prefill attention's kernel for tiles that want statistics alone, compiled for AMX with products
// in 8 bits: see prefill_attention_kernels.h.
#include "kernels/cpu/prefill_attention_kernels.h"
// The vector words come first; what is built of them here has a namespace of its own.
// clang-format off
#include "kernels/cpu/attention_simd_avx512.h"
#undef HYDRANT_SIMD_NAMESPACE
#define HYDRANT_SIMD_NAMESPACE amx_int8
namespace hydrant::cpu::amx_int8 {
using namespace avx512;  // NOLINT(google-build-using-namespace): the words
}
#include "kernels/cpu/attention_softcap-inl.h"
#include "kernels/cpu/prefill_panel_blocks-inl.h"
#include "kernels/cpu/prefill_attention_bytes-inl.h"
#include "kernels/cpu/amx_tiles-inl.h"
#include "kernels/cpu/prefill_amx_tiles-inl.h"
#include "kernels/cpu/prefill_attention_panel_i8_amx-inl.h"
#include "kernels/cpu/prefill_attention_tile-inl.h"
// clang-format on

namespace hydrant::cpu {
namespace {

void AttendTile(const PrefillShape& shape, const PrefillTile& tile, float* scratch) {
  amx_int8::ConfigureTiles();
  amx_int8::AttendTile(shape, tile, scratch);
  _tile_release();
}

}  // namespace

PrefillTileKernel PrefillTileBytesAmx() { return &AttendTile; }

}  // namespace hydrant::cpu
