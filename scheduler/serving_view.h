// A snapshot for the status page: the pool and its sequences, the queue, the last steps. Plain data
// without any prompt text; made by the loop's thread on request (ServingLoop::RequestView). Lists
// are bounded, and so are the strings in them.
#ifndef HYDRANT_SCHEDULER_SERVING_VIEW_H_
#define HYDRANT_SCHEDULER_SERVING_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/phase.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/serving_stats.h"
#include "scheduler/step_time_model.h"

namespace hydrant {

inline constexpr size_t kMaxViewedLive = 256;
inline constexpr size_t kMaxViewedWaiting = 64;
inline constexpr size_t kMaxViewedSteps = 256;
inline constexpr size_t kMaxViewedBytes = 64;  // of a client's own string

// A request, or one of its samples.
struct SequenceView {
  RequestHandle handle = 0;
  std::string request_id, tenant, policy;  // their first bytes
  int32_t priority = 0;
  Phase phase = Phase::kWaiting;
  TimeUs age_us = 0;                      // since it was submitted
  std::optional<int32_t> budget{};        // C, mean over the layers; unset: nothing is evicted
  std::optional<int32_t> most_entries{};  // most entries of a head; unset: no limit
  int32_t prompt_tokens = 0;
  int32_t prompt_tokens_read = 0;  // scaled by layers
  int32_t completion_tokens = 0;
  int32_t kept = 0, evicted = 0;  // so far, mean over the heads
  int32_t fullest = 0;            // entries of the fullest head
  int64_t pages = 0;              // held in the pool
  // Pages without another owner: all that cannot be shared, and an even part of the shareable ones
  // that have one owner.
  int64_t own_pages = 0;
  int64_t host_pages = 0;  // in host memory, while swapped out
  int64_t full_pages = 0;  // of a full cache of the same tokens
  int32_t preemptions = 0, swaps = 0, shrinks = 0;
};

struct ServingView {
  TimeUs at = 0;  // steady clock
  ServingStats stats;
  int64_t shared_pages = 0;           // of the pool, with several owners; each once
  int64_t context_pages = 0;          // in host memory, of contexts
  int64_t host_pages = 0;             // in all, for contexts and swapped caches
  uint64_t evicted_entries = 0;       // mean over heads; sum over all sequences, live ones too
  std::vector<SequenceView> live;     // prefilling and running, the most pages first
  int64_t pages_of_others = 0;        // own_pages of live sequences that are not listed
  std::vector<SequenceView> waiting;  // the first of the queue
  std::vector<StepTaken> steps;       // the last steps, the oldest first
};

// REQUIRES: between steps. O(live and waiting sequences); without the steps. `evicted_entries`: of
// sequences that have ended.
ServingView MakeView(const SchedulerState& state, const ServingStats& stats,
                     uint64_t evicted_entries, TimeUs now);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SERVING_VIEW_H_
