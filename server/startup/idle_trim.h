// Gives the heap's free pages back to the system. glibc keeps what is freed below a block that
// lives, which after many thousand requests is most of the heap. One thread looks; what it does
// takes the allocator's locks, so it waits until there is nothing to do.
#ifndef HYDRANT_SERVER_STARTUP_IDLE_TRIM_H_
#define HYDRANT_SERVER_STARTUP_IDLE_TRIM_H_

#include <chrono>
#include <cstdint>

namespace hydrant {

// Before any thread begins: few heaps, instead of eight a core, of which each keeps its own free
// pages. MALLOC_ARENA_MAX in the environment goes before it.
void LimitHeaps();

class IdleTrim {
 public:
  // `steps`: of the engine so far. To be called a few times a second. Trims when there has been no
  // step for a second, and once a minute from then on: calls without a step leave something too.
  void Look(bool idle, uint64_t steps);

 private:
  using Clock = std::chrono::steady_clock;
  uint64_t steps_ = 0;
  Clock::time_point due_{};
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_IDLE_TRIM_H_
