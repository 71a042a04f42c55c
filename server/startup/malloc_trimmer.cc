#include "server/startup/malloc_trimmer.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cstdlib>

namespace hydrant {
namespace {

constexpr std::chrono::seconds kQuiet{1};
constexpr std::chrono::minutes kBetweenTrims{1};

}  // namespace

void LimitHeaps() {
#ifdef __GLIBC__
  // few, because threads keep small blocks in their own caches and rarely contend
  constexpr int kHeaps = 4;
  if (std::getenv("MALLOC_ARENA_MAX") == nullptr) mallopt(M_ARENA_MAX, kHeaps);
#endif
}

void MallocTrimmer::Poll(bool idle, uint64_t steps) {
  const auto now = Clock::now();
  if (!idle || steps != steps_) {
    steps_ = steps;
    due_ = now + kQuiet;
  }
  if (now < due_) return;
  due_ = now + kBetweenTrims;
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace hydrant
