// Counts and gauges of the scheduler and of the serving loop, at a moment. A new counter is a
// member here, set in Scheduler::Stats(), and told in server/apis/metrics.cc. Plain data.
#ifndef HYDRANT_SCHEDULER_SERVING_STATS_H_
#define HYDRANT_SCHEDULER_SERVING_STATS_H_

#include <cstdint>

#include "engine/cache/prefix_cache.h"
#include "engine/cache/wait_reason.h"
#include "scheduler/request.h"

namespace hydrant {

struct ServingStats {
  int running = 0;
  int prefilling = 0;
  int waiting = 0;                                // preempted ones included
  WaitReason wait_reason = WaitReason::kArrived;  // of the queue's head
  TimeUs longest_wait_us = 0;  // of requests that have not begun; measured at each progress scan
  int64_t queued_tokens = 0;   // known tokens of the waiting ones
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t pages_spared = 0;  // that sequences would hold more if pages had one owner each
  int64_t state_pages = 0;   // of the used ones, those that hold scores of others' entries
  uint64_t steps = 0;
  uint64_t preemptions = 0;        // caches that were released
  uint64_t shrinks = 0;            // caches that were compacted for others
  uint64_t compressed = 0;         // requests that were admitted by policy_under_pressure
  uint64_t swaps = 0;              // preempted caches that were moved to host memory
  int64_t swapped_pages = 0;       // that are there now
  uint64_t prompt_tokens = 0;      // read, each prompt once
  uint64_t generation_tokens = 0;  // sampled and used
  PrefixCacheStats prefix_cache{};
  int64_t contexts = 0;
  uint64_t contexts_evicted = 0;  // that left because others wanted their room

  // The serving loop's times, by the steady clock.
  TimeUs last_step_end = 0;
  TimeUs last_step_us = 0;
  // The last step's end, or when work came; 0: there is no work. A loop that is stuck has work and
  // ends no step.
  TimeUs step_due_since = 0;
  // Host time of all steps: scheduling, enqueueing, delivery. A CPU computes within enqueueing; the
  // wait for a device is not counted.
  TimeUs host_us = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SERVING_STATS_H_
