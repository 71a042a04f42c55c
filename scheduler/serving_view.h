// What is there at a moment, for people who look: the pool and who holds it, who waits, the last
// steps. Plain data without a word of any prompt; made by the loop's thread when it is asked
// (ServingLoop::AskForView). Lists are bounded, and so are the strings in them.
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

inline constexpr size_t kMostViewedLive = 256;
inline constexpr size_t kMostViewedWaiting = 64;
inline constexpr size_t kMostViewedSteps = 256;
inline constexpr size_t kMostViewedBytes = 64;  // of a client's own string

// A request, or one of its samples.
struct SequenceView {
  RequestHandle handle = 0;
  std::string request_id, tenant, policy;  // their first bytes
  int32_t priority = 0;
  Phase phase = Phase::kWaiting;
  TimeUs age_us = 0;                      // since it was submitted
  std::optional<int32_t> budget{};        // C, on average over the layers; unset: everything stays
  std::optional<int32_t> most_entries{};  // that a head may hold; unset: any number
  int32_t prompt_tokens = 0;
  int32_t prompt_tokens_read = 0;  // scaled by layers
  int32_t completion_tokens = 0;
  int32_t kept = 0, evicted = 0;  // so far, mean over the heads
  int32_t fullest = 0;            // entries of the fullest head
  int64_t pages = 0;              // held in the pool
  // Of these, those with no other owner: of what others may own too, its part of what they do not.
  int64_t own_pages = 0;
  int64_t host_pages = 0;  // of one that is swapped out
  int64_t full_pages = 0;  // that the full cache of the same tokens would hold
  int32_t preemptions = 0, swaps = 0, shrinks = 0;
};

struct ServingView {
  TimeUs at = 0;  // steady clock
  SchedulerStats stats;
  int64_t shared_pages = 0;           // of the pool, with several owners; each once
  int64_t context_pages = 0;          // in the host's memory, of contexts
  int64_t host_pages = 0;             // that there are, for contexts and for what is swapped out
  uint64_t evicted_entries = 0;       // per head on average; sum over all sequences, live ones too
  std::vector<SequenceView> live;     // prefilling and running: those with the most pages, in order
  int64_t pages_of_others = 0;        // of live ones that are not listed: their own
  std::vector<SequenceView> waiting;  // the first ones in the queue's order
  std::vector<StepTaken> steps;       // the last ones, the oldest first
};

// REQUIRES: between steps. O(live and waiting sequences); without the steps. `evicted_entries`: of
// sequences that have ended.
ServingView MakeView(const SchedulerState& state, const SchedulerStats& stats,
                     uint64_t evicted_entries, TimeUs now);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SERVING_VIEW_H_
