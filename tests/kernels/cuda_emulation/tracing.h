// Traces the blocks' reads and writes of device memory. In the traced build the compiler calls a
// function at every access (tracing.cc); in the other build these functions do nothing.
//
// Bytes read by blocks are counted if Counts::trace is set (counts.h).
//
// HYDRANT_EMULATION_LATE_WRITES=1: other blocks see a block's write only when the kernel ends,
// unless a fence has ordered it before the write or atomic that publishes it: a __threadfence() of
// the same thread after the write, or of any thread of the block after a block barrier that follows
// the write (CUDA C++ Programming Guide, "Memory Fence Functions"; fences are cumulative). Atomics
// are visible at once. 2: fences are ignored, to check that a test would find a missing fence.
//
// In both modes an overlapped kernel (launch.cuh) fails if a thread, before waiting for earlier
// kernels, writes, or reads data that kernels have written since the last synchronization: on a
// device they may still be running.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_TRACING_H_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_TRACING_H_

#include <cstddef>

namespace hydrant::emulation {

void BeginBlock();  // later accesses belong to a block
void EndBlock();
void EndGrid();  // late writes become visible

void BeginOverlappedGrid();
bool EndOverlappedGrid();  // false: a thread accessed memory before its wait
void ForgetWrites();       // after a synchronization

// For the running thread.
void NoteThreadWaits();                         // for earlier kernels
void NoteCopy(const void* from, size_t bytes);  // in flight from now on
void NoteBlockBarrier();
void NoteFence();

// Marks accesses in its scope as an atomic operation's.
class AtomicAccess {
 public:
  AtomicAccess();
  ~AtomicAccess();
  AtomicAccess(const AtomicAccess&) = delete;
  AtomicAccess& operator=(const AtomicAccess&) = delete;
};

bool IsDeviceMemory(const void* at);  // of the runtime
int LateWrites();                     // the setting
inline constexpr int kWithoutFences = 2;

}  // namespace hydrant::emulation

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_TRACING_H_
