// The instruction set that the cpu backend uses on this machine. The environment variable
// HYDRANT_CPU_ISA (avx2 | avx512 | avx512bf16 | amx | native) limits it, so that one machine can
// test every lower path. Read once, at the first call; stateless after that, any thread may call.
#ifndef HYDRANT_KERNELS_CPU_ISA_ISA_H_
#define HYDRANT_KERNELS_CPU_ISA_ISA_H_

#include <string_view>

#include "absl/status/status.h"

namespace hydrant::cpu {

// Each level includes the ones before it.
enum class Isa {
  kAvx2,        // AVX2, FMA, F16C: the minimum of the backend
  kAvx512,      // AVX-512 F, CD, BW, DQ, VL
  kAvx512Bf16,  // AVX512_BF16
  kAmx,  // AMX_TILE and AMX_BF16, and the kernel's permission to use tile data in this process
};

// The best level that both the machine and HYDRANT_CPU_ISA allow. The first call also limits
// Highway's dynamic dispatch to that level, so it must come before the first dispatched kernel.
// Returns kAvx2 even where the machine lacks it; CheckIsa() reports that.
Isa DetectIsa();

// Whether the level is at least kAvx512 and the machine has byte dot products (AVX512_VNNI).
bool HasVnni();

// Whether the level is kAmx, with VNNI, and the machine has byte tiles (AMX_INT8).
bool HasAmxInt8();

// InvalidArgument where the machine lacks AVX2, FMA or F16C, or
// HYDRANT_CPU_ISA has an unknown value.
absl::Status CheckIsa();

// "AVX2", "AVX-512", "AVX-512 BF16", "AVX-512 BF16 AMX".
std::string_view IsaName(Isa isa);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ISA_ISA_H_
