// Takes a part of a scheduler's free memory, so that allocations fail although its sequences leave
// room. Takes the ids from the allocators of KvCacheManager directly, and frees them on
// destruction. Meanwhile the scheduler's invariants do not hold.
#ifndef HYDRANT_TESTS_SCHEDULER_SHORTAGE_H_
#define HYDRANT_TESTS_SCHEDULER_SHORTAGE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

namespace hydrant {

class Shortage {
 public:
  // Percent of the free and unreserved amount, rounded up.
  struct Parts {
    int pages = 0;
    int host_pages = 0;
    int table_entries = 0;
    int arena_tokens = 0;
    int slots = 0;
  };
  Shortage(const Parts& parts, Scheduler* scheduler);
  ~Shortage();
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

 private:
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // begin, length
  static std::vector<int32_t> Take(int percent, int64_t free, BlockAllocator* blocks);
  static Ranges Take(int percent, RangeAllocator* ranges);

  KvCacheManager* const kv_cache_;
  std::vector<int32_t> pages_, host_pages_;
  Ranges table_, arena_;
  std::vector<int> slots_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_SHORTAGE_H_
