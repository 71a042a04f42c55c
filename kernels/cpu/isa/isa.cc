#include "kernels/cpu/isa/isa.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "hwy/targets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace hydrant::cpu {
namespace {

#if defined(__x86_64__)
constexpr const char* kBaseName = "AVX2";
constexpr const char* kBaseParts = "AVX2, BMI2, FMA and F16C";
constexpr const char* kLimits = "avx2, avx512, avx512bf16, amx or native";

// By CPUID, because clang 14 does not know the feature name.
bool MachineHasF16c() {
  constexpr uint32_t kF16c = 1u << 29;  // CPUID.1:ECX
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16c) != 0;
}

bool MachineHasBase() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("fma") && MachineHasF16c();
}

bool MachineHasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// CPUID.(7,0):EDX
constexpr uint32_t kAmxBf16 = 1u << 22;
constexpr uint32_t kAmxTile = 1u << 24;
constexpr uint32_t kAmxInt8 = 1u << 25;

#ifdef HYDRANT_EMULATE_AMX  // in tests: amx_emulation-inl.h
bool MachineHasAmx(uint32_t) { return true; }
#else
// Linux grants tile data to a process only on request (Documentation/arch/x86/xstate.rst).
bool AmxPermitted() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

bool MachineHasAmx(uint32_t units) {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  return (edx & units) == units && AmxPermitted();
}
#endif

Isa MachineIsa() {
  if (!MachineHasAvx512()) return Isa::kBase;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  return MachineHasAmx(kAmxTile | kAmxBf16) ? Isa::kAmx : Isa::kAvx512Bf16;
}

bool MachineHasVnni() { return __builtin_cpu_supports("avx512vnni"); }

std::optional<Isa> ParseLimit(const std::string& limit) {
  if (limit == "avx2") return Isa::kBase;
  if (limit == "avx512") return Isa::kAvx512;
  if (limit == "avx512bf16") return Isa::kAvx512Bf16;
  if (limit == "amx" || limit == "native") return Isa::kAmx;
  return std::nullopt;
}
#else
constexpr const char* kBaseName = "NEON";
constexpr const char* kBaseParts = "NEON and AES";  // Highway's NEON has both
constexpr const char* kLimits = "neon, dotprod or native";
constexpr uint32_t kAmxTile = 0, kAmxInt8 = 0;

bool MachineHasBase() {
  constexpr unsigned long kParts = HWCAP_ASIMD | HWCAP_AES;
  return (getauxval(AT_HWCAP) & kParts) == kParts;
}
bool MachineHasVnni() { return false; }
bool MachineHasAmx(uint32_t) { return false; }
Isa MachineIsa() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? Isa::kDotProd : Isa::kBase; }

std::optional<Isa> ParseLimit(const std::string& limit) {
  if (limit == "neon") return Isa::kBase;
  if (limit == "dotprod" || limit == "native") return Isa::kDotProd;
  return std::nullopt;
}
#endif

std::string RequestedLimit() {
  const char* value = std::getenv("HYDRANT_CPU_ISA");
  return value == nullptr || *value == '\0' ? "native" : value;
}

Isa DetectAndLimit() {
  const Isa isa = std::min(MachineIsa(), ParseLimit(RequestedLimit()).value_or(Isa::kAmx));
  if (isa == Isa::kBase) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  return isa;
}

}  // namespace

Isa DetectIsa() {
  static const Isa isa = DetectAndLimit();
  return isa;
}

bool HasVnni() { return DetectIsa() >= Isa::kAvx512 && MachineHasVnni(); }

bool HasByteDots() { return kIsX86 ? HasVnni() : DetectIsa() >= Isa::kDotProd; }

bool HasAmxInt8() {
  return DetectIsa() >= Isa::kAmx && HasVnni() && MachineHasAmx(kAmxTile | kAmxInt8);
}

absl::Status CheckIsa() {
  if (!MachineHasBase()) {
    return absl::InvalidArgumentError(absl::StrCat("the cpu backend needs a processor with ",
                                                   kBaseParts,
                                                   "; this machine lacks at least one of them"));
  }
  const std::string limit = RequestedLimit();
  if (!ParseLimit(limit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("HYDRANT_CPU_ISA is \"", limit, "\"; it must be ", kLimits));
  }
  return absl::OkStatus();
}

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kBase:
      return kBaseName;
    case Isa::kDotProd:
      return "NEON with dot products";
    case Isa::kAvx512:
      return "AVX-512";
    case Isa::kAvx512Bf16:
      return "AVX-512 BF16";
    case Isa::kAmx:
      return "AVX-512 BF16 AMX";
  }
  return "?";
}

}  // namespace hydrant::cpu
