// Returns the heap's free pages to the system. glibc keeps free memory below a live block, which
// after many thousand requests is most of the heap. Trimming takes the allocator's locks, so it is
// done when the daemon is idle.
#ifndef HYDRANT_SERVER_STARTUP_MALLOC_TRIMMER_H_
#define HYDRANT_SERVER_STARTUP_MALLOC_TRIMMER_H_

#include <chrono>
#include <cstdint>

namespace hydrant {

// Call it before any thread starts: limits glibc to few heaps instead of eight per core, each with
// its own free pages. MALLOC_ARENA_MAX in the environment takes precedence.
void LimitHeaps();

class MallocTrimmer {
 public:
  // `steps`: total steps of the engine. Call it a few times a second from one thread. Trims after a
  // second without a step, and then once a minute, because calls without a step allocate too.
  void Poll(bool idle, uint64_t steps);

 private:
  using Clock = std::chrono::steady_clock;
  uint64_t steps_ = 0;
  Clock::time_point due_{};
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MALLOC_TRIMMER_H_
