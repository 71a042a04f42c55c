// The functions that GCC calls at every memory access of code compiled with
// -fsanitize=kernel-address (GCC manual, "Instrumentation Options"). This file itself is
// compiled without it.
#include "tests/kernels/cuda_emulation/tracing.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tests/kernels/cuda_emulation/counts.h"
#include "tests/kernels/cuda_emulation/fibers.h"

namespace hydrant::emulation {
namespace {

constexpr uintptr_t kSectorBytes = 32;
constexpr int kMaxThreads = 1024;

// The running block's write to a byte of device memory.
struct Written {
  uint8_t before = 0;  // value before the block
  int thread = 0;      // last writer
  int epoch = 0;       // block barriers passed by that thread
  uint64_t time = 0;
};

struct Block {
  bool counts = false, delays = false;    // enabled checks
  std::unordered_set<uintptr_t> sectors;  // sectors that it has read
  std::unordered_map<uint8_t*, Written> written;
  std::array<int, kMaxThreads> epochs;
  std::array<uint64_t, kMaxThreads> fences;  // when each thread last fenced
  int last_fence_epoch = -1;                 // over all threads
  uint64_t time = 0;
};
Block& block = *new Block;
bool watches = false;  // the access is a block's, not the runtime's or an atomic's
auto& late = *new std::vector<std::pair<uint8_t*, uint8_t>>;  // of the grid, in order

constexpr uintptr_t kPieceBytes = 16;
// Pieces written by kernels since the last synchronization.
auto& written_lately = *new std::unordered_set<uintptr_t>;

struct Overlap {
  bool active = false, too_early = false;  // of the grid
  std::array<bool, kMaxThreads> waited;    // of the block
};
Overlap overlap;

bool IsEarly() { return overlap.active && !overlap.waited[CurrentThread()]; }
template <typename Visit>
void ForPieces(const void* at, size_t bytes, Visit visit) {
  const auto first = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t p = first / kPieceBytes; p <= (first + bytes - 1) / kPieceBytes; ++p) visit(p);
}
void CheckEarlyRead(const void* at, size_t bytes) {
  ForPieces(at, bytes,
            [](uintptr_t piece) { overlap.too_early |= written_lately.contains(piece); });
}

bool IsOfBlock(const void* at, size_t bytes) {
  if (!watches || bytes == 0) return false;
  watches = false;  // the linker may take the kernels' traced copies of std's inline functions
  const bool is_of_block = IsDeviceMemory(at);
  watches = true;
  return is_of_block;
}

void NoteLoad(const void* at, size_t bytes) {
  if ((!block.counts && !IsEarly()) || !IsOfBlock(at, bytes)) return;
  if (IsEarly()) CheckEarlyRead(at, bytes);
  if (!block.counts) return;
  const auto first = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t s = first / kSectorBytes; s <= (first + bytes - 1) / kSectorBytes; ++s)
    block.sectors.insert(s);
}

// Called before the bytes change.
void NoteStore(void* at, size_t bytes) {
  if (!block.delays || !IsOfBlock(at, bytes)) return;
  overlap.too_early |= IsEarly();
  ForPieces(at, bytes, [](uintptr_t piece) { written_lately.insert(piece); });
  auto* byte = static_cast<uint8_t*>(at);
  const int thread = CurrentThread();
  ++block.time;
  for (size_t i = 0; i < bytes; ++i) {
    Written& written =
        block.written.try_emplace(byte + i, Written{.before = byte[i]}).first->second;
    written.thread = thread;
    written.epoch = block.epochs[thread];
    written.time = block.time;
  }
}

bool IsFenced(const Written& written) {
  return block.fences[written.thread] > written.time || block.last_fence_epoch > written.epoch;
}

[[maybe_unused]] const bool can_trace = TheCounts().can_trace = true;

}  // namespace

void BeginBlock() {
  block.counts = TheCounts().trace;
  block.delays = LateWrites() != 0;
  block.epochs.fill(0);
  block.fences.fill(0);
  block.last_fence_epoch = -1;
  overlap.waited.fill(false);
  watches = block.counts || block.delays;
}

void EndBlock() {
  watches = false;
  TheCounts().read_bytes += block.sectors.size() * kSectorBytes;
  block.sectors.clear();
  for (const auto& [byte, written] : block.written) {
    if (IsFenced(written)) continue;
    late.emplace_back(byte, *byte);
    *byte = written.before;
  }
  block.written.clear();
}

void EndGrid() {
  for (const auto& [byte, value] : late) *byte = value;
  late.clear();
}

void BeginOverlappedGrid() {
  overlap.active = LateWrites() != 0;
  overlap.too_early = false;
}
bool EndOverlappedGrid() {
  overlap.active = false;
  return !overlap.too_early;
}
void ForgetWrites() { written_lately.clear(); }
void NoteThreadWaits() { overlap.waited[CurrentThread()] = true; }
void NoteCopy(const void* from, size_t bytes) {
  if (IsEarly()) CheckEarlyRead(from, bytes);
}

void NoteBlockBarrier() { ++block.epochs[CurrentThread()]; }
void NoteFence() {
  if (LateWrites() == kWithoutFences) return;
  const int thread = CurrentThread();
  block.fences[thread] = ++block.time;
  block.last_fence_epoch = std::max(block.last_fence_epoch, block.epochs[thread]);
}

// No other thread runs in between: fibers switch only at barriers.
AtomicAccess::AtomicAccess() { watches = false; }
AtomicAccess::~AtomicAccess() { watches = block.counts || block.delays; }

}  // namespace hydrant::emulation

// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {
#define HYDRANT_TRACE(size)                                                                    \
  void __asan_load##size##_noabort(const void* at) { hydrant::emulation::NoteLoad(at, size); } \
  void __asan_store##size##_noabort(void* at) { hydrant::emulation::NoteStore(at, size); }
HYDRANT_TRACE(1)
HYDRANT_TRACE(2)
HYDRANT_TRACE(4)
HYDRANT_TRACE(8)
HYDRANT_TRACE(16)
#undef HYDRANT_TRACE
void __asan_loadN_noabort(const void* at, size_t bytes) { hydrant::emulation::NoteLoad(at, bytes); }
void __asan_storeN_noabort(void* at, size_t bytes) { hydrant::emulation::NoteStore(at, bytes); }
void __asan_handle_no_return() {}
void __asan_before_dynamic_init(const char*) {}
void __asan_after_dynamic_init() {}
}
// NOLINTEND(bugprone-reserved-identifier)
