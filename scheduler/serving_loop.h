// The one thread that owns scheduler and engine: drain inbox -> Schedule(now) -> Execute -> Apply
// -> deliver. Submit, Cancel, Snapshot and the shutdown calls are safe from any thread and never
// wait for a step. Whoever looks (Snapshot, metrics) never makes the loop wait either.
#ifndef HYDRANT_SCHEDULER_SERVING_LOOP_H_
#define HYDRANT_SCHEDULER_SERVING_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/prefix_cache.h"
#include "engine/run/step/batch.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/context_table.h"
#include "scheduler/kv_events.h"
#include "scheduler/loop_metrics.h"
#include "scheduler/options.h"
#include "scheduler/request.h"
#include "scheduler/step_time_model.h"

namespace hydrant {

// Receives all events of a step in one call, on the loop thread. Must not block.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Deliver(std::vector<Event> events) = 0;
};

struct SchedulerStats;  // scheduler/scheduler.h
struct ServingView;     // scheduler/serving_view.h

struct LoopSnapshot {
  int running = 0;                                // decoding
  int prefilling = 0;                             // prompt being read
  int waiting = 0;                                // queued, preempted ones included
  WaitReason wait_reason = WaitReason::kArrived;  // why they wait
  TimeUs longest_wait_us = 0;                     // as in SchedulerStats
  int64_t queued_tokens = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t pages_spared = 0;  // SchedulerStats
  int64_t state_pages = 0;
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  uint64_t swaps = 0;
  uint64_t shrinks = 0;
  uint64_t compressed = 0;
  int64_t swapped_pages = 0;
  uint64_t prompt_tokens = 0;  // totals since start
  uint64_t generation_tokens = 0;
  PrefixCacheStats prefix_cache = {};
  int64_t contexts = 0;
  uint64_t contexts_evicted = 0;
  TimeUs last_step_end = 0;   // steady clock
  TimeUs step_due_since = 0;  // steady clock: the last step's end, or when work came; 0: there is
                              // nothing to do. For health: no step for long with work queued
  TimeUs last_step_us = 0;
  TimeUs host_us = 0;  // of all steps: scheduling, enqueueing, delivery. A host's device computes
                       // as it is enqueued, another one is waited for outside of this
  absl::Status engine_status = {};  // not ok: the engine is lost, nothing is served any more
};

// What is known of a request that was taken.
struct Queued {
  int64_t prompt_tokens = 0;            // with those of the context that it goes on from
  std::optional<int32_t> cache_tokens;  // CheckedRequest::CacheTokens()
  // The policy of CheckedRequest::under_pressure; empty: it is never compressed by another.
  std::string policy_under_pressure;
  uint64_t seed = 0;  // of its first sample, drawn where the request named none
};

class ServingLoop {
 public:
  using StepCallback =
      std::function<void(const StepTaken&, const SchedulerStats&, const std::vector<Event>&)>;

  // Borrowed: executor, tokenizer, sink outlive the loop.
  static absl::StatusOr<std::unique_ptr<ServingLoop>> Start(StepExecutor* executor,
                                                            const Tokenizer* tokenizer,
                                                            const SchedulerOptions& options,
                                                            EventSink* sink);
  ~ServingLoop();  // Stop()

  // Checks and queues. On refusal the Failed (status, reason, retry time) comes back at once and no
  // event follows. `handle` is chosen by the caller (unique), so that events can be routed before
  // Submit returns.
  std::variant<Queued, Failed> Submit(RequestHandle handle, Request request);
  // The same with a sample for each handle, all of them or none: sample i is drawn with the seed +
  // i, and hears events of its own as handles[i]. Each counts as one that waits. If one fails the
  // others go on. `request_id` is free again when the last has ended. REQUIRES: 1 to kMaxSamples
  // handles; where there is more than one, nothing is resumed, kept or pooled
  std::variant<Queued, Failed> Submit(std::span<const RequestHandle> handles, Request request);
  // `handle`: the request's first. Idempotent; unknown ones are ignored. Those of its samples that
  // have not ended end with Failed{CANCELLED} (status code given), and their pages are free within
  // two steps.
  void Cancel(RequestHandle handle, const absl::Status& why);
  // The same of the request of this owner and id.
  void Abort(const std::string& owner, const std::string& request_id, const absl::Status& why);

  const ContextDirectory& contexts() const;
  // Calls it on the loop's thread, between steps, when the pages of contexts are where they belong;
  // with null where the loop stops or its engine is lost. It must not block.
  void WithContexts(std::function<void(ContextTable*)> command);
  // The same for whoever reads or writes prefix blocks.
  void WithPrefixCache(std::function<void(PrefixCache*)> command);
  // What becomes of prefix blocks; lives as long as the loop.
  KvEvents& kv_events();
  // Called with the keys of all that a prompt has left in prefix blocks, on the loop's thread. It
  // must not block. Before the first request.
  void OnPrefixFilled(std::function<void(const std::vector<PrefixKey>&)> callback);
  // Called with every context that a request leaves, as WithContexts() calls. Before the first
  // request.
  void OnKept(std::function<void(std::shared_ptr<const Context>)> callback);

  // Called with every step that has come back, on the loop's thread: what is there afterwards, and
  // the events that are about to be delivered. It must not block. Before the first request.
  void OnStep(StepCallback callback);

  LoopSnapshot Snapshot() const;       // takes no lock
  const LoopMetrics& metrics() const;  // the same
  // Asks for a view of what is there, and takes the one that an earlier call has asked for; null:
  // it has not come. It is made after the step at work, at once where there is none. Nobody waits:
  // it takes none of the loop's locks, at the price that a call which comes just as the loop falls
  // asleep is answered with the next.
  std::unique_ptr<ServingView> AskForView();

  void StopAdmitting();  // further Submit calls are refused with DRAINING
  bool Idle() const;     // nothing queued or running, and OnKept has been told of all that was kept
  void Stop();  // ends what still runs with Failed{DRAINING} (UNAVAILABLE) and joins the thread

 private:
  class Impl;
  explicit ServingLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SERVING_LOOP_H_
