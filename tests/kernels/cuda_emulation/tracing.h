// What blocks read and write of device memory, seen at every access. In the traced build the
// compiler calls a function there (tracing.cc); in the other nothing is seen, and these do nothing.
//
// Bytes that blocks read are counted where Counts::trace is set (counts.h).
//
// With HYDRANT_EMULATION_LATE_WRITES=1 other blocks see what a block writes when the kernel ends,
// and not before, unless a fence has ordered it before whatever tells the others of it: a
// __threadfence() of the same thread after the write, or of any thread of the block after a block's
// barrier that follows the write (CUDA C++ Programming Guide, "Memory Fence Functions"; fences are
// cumulative). Atomics are seen at once. 2: fences are ignored, to see that a test would find one
// that is missing.
//
// In both modes a kernel fails that overlaps with the ones before it (launch.cuh) and, before a
// thread has waited for them, writes, or reads what kernels have written since the device was
// last waited for: on a device they may still be at it.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_TRACING_H_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_TRACING_H_

#include <cstddef>

namespace hydrant::emulation {

void BeginBlock();  // the accesses from here on are a block's
void EndBlock();
void EndGrid();  // all that was late appears

void BeginOverlappedGrid();
bool EndOverlappedGrid();  // false: a thread did too early what it has to wait for
void ForgetWrites();       // the device has been waited for

// Of the running thread.
void NoteThreadWaits();                         // for the kernels before
void NoteCopy(const void* from, size_t bytes);  // is on its way from now on
void NoteBlockBarrier();
void NoteFence();

// While it lives, the accesses are an atomic operation's.
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
