// The instruction set that the cpu backend uses on this machine. The environment variable
// HYDRANT_CPU_ISA (avx2 | avx512 | avx512bf16 | amx | native; on ARM neon | dotprod | native)
// limits it, so that one machine can test every lower path. Read once, at the first call; stateless
// after that, any thread may call.
#ifndef HYDRANT_KERNELS_CPU_ISA_ISA_H_
#define HYDRANT_KERNELS_CPU_ISA_ISA_H_

#include <string_view>

#include "absl/status/status.h"

namespace hydrant::cpu {

// Each level includes the ones before it.
enum class Isa {
  kBase,        // the minimum of the backend: AVX2, BMI2, FMA and F16C; on ARM NEON
  kDotProd,     // on ARM alone: dot products of bytes (FEAT_DotProd)
  kAvx512,      // AVX-512 F, CD, BW, DQ, VL
  kAvx512Bf16,  // AVX512_BF16
  kAmx,  // AMX_TILE and AMX_BF16, and the kernel's permission to use tile data in this process
};

// The processor family: kernels of the other one are not linked.
#if defined(__x86_64__)
inline constexpr bool kIsX86 = true;
#else
inline constexpr bool kIsX86 = false;
#endif

// The best level that both the machine and HYDRANT_CPU_ISA allow. The first call also limits
// Highway's dynamic dispatch to that level, so it must come before the first dispatched kernel.
// Returns kBase even where the machine lacks it; CheckIsa() reports that.
Isa DetectIsa();

// Whether the level is at least kAvx512 and the machine has byte dot products (AVX512_VNNI).
bool HasVnni();

// Whether there are dot products of bytes: HasVnni(), or on ARM kDotProd.
bool HasByteDots();

// Whether the level is kAmx, with VNNI, and the machine has byte tiles (AMX_INT8).
bool HasAmxInt8();

// InvalidArgument where the machine lacks a part of kBase, or
// HYDRANT_CPU_ISA has an unknown value.
absl::Status CheckIsa();

// "AVX2", "AVX-512", "AVX-512 BF16", "AVX-512 BF16 AMX"; on ARM "NEON", "NEON with dot products".
std::string_view IsaName(Isa isa);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ISA_ISA_H_
