// For programs with emulated AMX: their vector code needs AVX-512 with bf16; without it no
// AMX code would run.
#include <gtest/gtest.h>

#include "kernels/cpu/isa/isa.h"

namespace hydrant {
namespace {

class RequireAmx : public testing::Environment {
 public:
  void SetUp() override {
    if (cpu::DetectIsa() != cpu::Isa::kAmx || !cpu::HasAmxInt8())
      GTEST_SKIP() << "emulated AMX wants AVX-512 with bf16 and VNNI";
  }
};

const auto* const kRequire = testing::AddGlobalTestEnvironment(new RequireAmx);

}  // namespace
}  // namespace hydrant
