// What the serving loop shows while it runs. The loop writes, anybody reads, nobody waits: there is
// nothing here but lock-free atomics, so a reader that is stopped in the middle, as by the
// operating system's scheduler, delays no step. Every number is true by itself; two of them may be
// a step apart.
#ifndef HYDRANT_SCHEDULER_LOOP_METRICS_H_
#define HYDRANT_SCHEDULER_LOOP_METRICS_H_

#include <atomic>
#include <cstdint>

#include "engine/cache/wait_reason.h"
#include "scheduler/histogram.h"
#include "scheduler/request.h"

namespace hydrant {

struct LoopMetrics {
  static_assert(std::atomic<int64_t>::is_always_lock_free);

  std::atomic<int> running{0};     // decoding
  std::atomic<int> prefilling{0};  // prompt being read
  std::atomic<int> waiting{0};     // queued, preempted ones included
  std::atomic<WaitReason> wait_reason{WaitReason::kArrived};
  std::atomic<TimeUs> longest_wait_us{0};
  std::atomic<int64_t> queued_tokens{0};
  std::atomic<int64_t> pages_free{0};
  std::atomic<int64_t> pages_spared{0};
  std::atomic<int64_t> state_pages{0};  // SchedulerStats
  std::atomic<int64_t> swapped_pages{0};
  // Totals since the start.
  std::atomic<uint64_t> steps{0};
  std::atomic<uint64_t> preemptions{0};
  std::atomic<uint64_t> swaps{0};
  std::atomic<uint64_t> shrinks{0};
  std::atomic<uint64_t> compressed{0};
  std::atomic<uint64_t> prompt_tokens{0};
  std::atomic<uint64_t> generation_tokens{0};
  std::atomic<TimeUs> host_us{0};
  std::atomic<uint64_t> prefix_queried_tokens{0};  // PrefixCacheStats
  std::atomic<uint64_t> prefix_hit_tokens{0};
  std::atomic<uint64_t> prefix_evicted_blocks{0};
  std::atomic<int64_t> prefix_filled_blocks{0};
  std::atomic<int64_t> contexts{0};
  std::atomic<uint64_t> contexts_evicted{0};

  std::atomic<TimeUs> last_step_end{0};
  std::atomic<TimeUs> last_step_us{0};
  std::atomic<TimeUs> step_due_since{0};  // the last step's end, or when work came; 0: no work

  Histogram step_seconds{0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
                         0.1,    0.15,  0.2,   0.3,   0.5,  1,     2.5,  5,    10,   30};
  Histogram batch_sequences{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  // Prompt tokens count when all layers have read them: a step that takes one through a part of the
  // layers counts as much of it.
  Histogram batch_tokens{1,   2,   4,    8,    16,   32,   64,    128,
                         256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_LOOP_METRICS_H_
