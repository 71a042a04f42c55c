// The tile registers of AMX: their configuration, and the memory ordering that GCC's intrinsics
// leave to the caller. Included by files compiled for AMX. A thread configures its tiles before a
// range of work and releases them after it.
#ifndef HYDRANT_KERNELS_CPU_ISA_AMX_TILES_INL_H_
#define HYDRANT_KERNELS_CPU_ISA_AMX_TILES_INL_H_

#include <immintrin.h>

#include <cstdint>

namespace hydrant::cpu {
namespace {

inline constexpr int kTileBytes = 1024;

// Layout fixed by the processor (Intel SDM, LDTILECFG).
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace
}  // namespace hydrant::cpu

// For tests on machines without AMX.
#ifdef HYDRANT_EMULATE_AMX
#include "kernels/cpu/isa/amx_emulation-inl.h"
#endif

namespace hydrant::cpu {
namespace {

// GCC's tile loads do not declare to the compiler that they read memory.
inline void OrderMemory() { asm volatile("" ::: "memory"); }

inline void Configure(const TileConfig& config) {
  OrderMemory();
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ISA_AMX_TILES_INL_H_
