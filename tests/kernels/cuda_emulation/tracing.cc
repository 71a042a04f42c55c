// The functions that GCC calls at every access of code compiled with -fsanitize=kernel-address
// (GCC's manual, "Instrumentation Options"). This file itself is compiled without.
#include "tests/kernels/cuda_emulation/tracing.h"

#include <cstddef>
#include <cstdint>
#include <unordered_set>

#include "tests/kernels/cuda_emulation/counts.h"

namespace hydrant::emulation {
namespace {

constexpr uintptr_t kSectorBytes = 32;
bool in_block = false;                  // and it is to be traced
std::unordered_set<uintptr_t> sectors;  // that the block has read

void Note(const void* at, size_t bytes) {
  if (!in_block || bytes == 0) return;
  in_block = false;  // the runtime's own accesses are no block's
  const bool counts = IsDeviceMemory(at);
  in_block = true;
  if (!counts) return;
  const auto first = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t s = first / kSectorBytes; s <= (first + bytes - 1) / kSectorBytes; ++s)
    sectors.insert(s);
}

[[maybe_unused]] const bool can_trace = TheCounts().can_trace = true;

}  // namespace

void BeginBlock() { in_block = TheCounts().trace; }
void EndBlock() {
  in_block = false;
  TheCounts().read_bytes += sectors.size() * kSectorBytes;
  sectors.clear();
}

}  // namespace hydrant::emulation

// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {
#define HYDRANT_TRACE(size)                                                                \
  void __asan_load##size##_noabort(const void* at) { hydrant::emulation::Note(at, size); } \
  void __asan_store##size##_noabort(const void*) {}
HYDRANT_TRACE(1)
HYDRANT_TRACE(2)
HYDRANT_TRACE(4)
HYDRANT_TRACE(8)
HYDRANT_TRACE(16)
#undef HYDRANT_TRACE
void __asan_loadN_noabort(const void* at, size_t bytes) { hydrant::emulation::Note(at, bytes); }
void __asan_storeN_noabort(const void*, size_t) {}
void __asan_handle_no_return() {}
// fibers.cc believes that there is the address sanitizer.
void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
void __asan_before_dynamic_init(const char*) {}
void __asan_after_dynamic_init() {}
}
// NOLINTEND(bugprone-reserved-identifier)
