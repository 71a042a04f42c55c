// Decides in every step which sequences run: continuous batching, FIFO admission by compressed
// size. No clock, no engine, no randomness; `now` is an argument. Owned by one thread; a second
// thread makes grammar masks that take longer than a step may wait (slow_masks.h).
//
// Every step: Schedule(now) -> Batch, the engine executes it, Apply(result, now), TakeEvents(). The
// next step may be scheduled before the last one's result has returned: progress counts from
// Schedule on, the newest token stays on the device, and tokens sampled for a sequence that has
// ended meanwhile are dropped. Schedule does, in this order:
//
//   1. End cancelled and late requests and free their pages. Fork samples of prompts that have been
//      read (prompt_reuse.h).
//   2. Compact caches whose plans say so (cache_compactor.h). Give running sequences the page that
//      their next entry needs; preempt others where pool or tables are dry (reclaimer.h). Preempted
//      sequences wait in their old place of the queue. Sequences with reserved pages
//      (OnPressure::kNever) are never preempted.
//   3. Admit from the front of the queue until one does not fit, now or later (admission.h), or
//      would make steps take longer than a target allows (slo_control.h). Requests that cannot have
//      their first token in time are refused. A request whose prefix is being read by another lets
//      it go first, and others pass.
//   4. Read prompts under a budget (prefill_planner.h), and decode one token of every running
//      sequence (batch_builder.h).
//
// A question or a conversation's next turn, which follows a compressed prompt, is read as a prompt
// is (4), behind the cache that is there, where the plan allows it (CachePlan::AppendsRuns). A
// preempted or resumed sequence reads its original prompt again, and the ranges behind it as
// before; its other known tokens pass through decode rows one at a time, and samples on the way are
// ignored. With the same seed the stream goes on as if nothing had happened.
//
// Invariants: free + live pages = pool; waiting sequences hold nothing; a page is in as many tables
// as it has owners, and is not written while it is in two.
// Steps run in order, and the updates of a step in the order in which Schedule() makes them
// (CacheUpdates). So a page may be given to another as soon as it is freed: every earlier read of
// the page has been scheduled before.
// A sequence alone in the pool can always grow to its max_total_tokens (CheckRequest), and one with
// reserved pages beside any others: those end, so the front always runs in the end.
#ifndef HYDRANT_SCHEDULER_SCHEDULER_H_
#define HYDRANT_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/prefix_cache.h"
#include "engine/run/step/batch.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/admission.h"
#include "scheduler/batch_builder.h"
#include "scheduler/cache_compactor.h"
#include "scheduler/context_table.h"
#include "scheduler/delivery.h"
#include "scheduler/mask_schedule.h"
#include "scheduler/options.h"
#include "scheduler/prompt_reuse.h"
#include "scheduler/queue_forecast.h"
#include "scheduler/reclaimer.h"
#include "scheduler/request.h"
#include "scheduler/request_check.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/sequence_table.h"
#include "scheduler/serving_stats.h"
#include "scheduler/serving_view.h"
#include "scheduler/slo_control.h"
#include "scheduler/step_ledger.h"

namespace hydrant {

class Scheduler {
 public:
  // Borrowed: the tokenizer outlives the scheduler.
  Scheduler(const EngineLimits& limits, const SchedulerOptions& options,
            const Tokenizer* tokenizer);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues it. REQUIRES: no live request has this handle; `request` was checked against the same
  // limits.
  void Add(RequestHandle handle, CheckedRequest request, TimeUs now);
  // Takes effect at the next Schedule(); unknown handles are ignored.
  void Cancel(RequestHandle handle, absl::Status why);

  // The work of a step; valid until the next Schedule(). Has work whenever a sequence is live,
  // unless the last tokens of all are on their way. A batch with work is a step in flight until its
  // Apply().
  const Batch& Schedule(TimeUs now);
  // REQUIRES: `result` answers the oldest step in flight.
  void Apply(const StepResult& result, TimeUs now);
  // Ends every request, when the engine is lost or the loop stops, and forgets the steps in flight.
  void FailAll(const absl::Status& status, const std::string& reason, TimeUs now);
  // Events since the last call, in order.
  std::vector<Event> TakeEvents() { return delivery_.TakeEvents(); }

  // Thread-safe: requests that continue a context are resolved before they are checked and added.
  const ContextDirectory& contexts() const { return directory_; }
  // Whether a step that moves pages to or from host memory is to come, or has not returned.
  bool HasSwapsInFlight() const { return HasSwaps(ended_updates_) || ledger_.SwapsInFlight(); }
  // To read or write these pages, between steps. REQUIRES: no swaps are under way
  ContextTable& context_table() { return contexts_; }
  // Whether steps in flight may write prefix blocks that have been given up.
  bool HasBlocksInFlight() const { return ledger_.HasBlocksInFlight(); }
  // To read or write prefix blocks, between steps. REQUIRES: no blocks are under way
  PrefixCache& prefix_cache() { return reuse_.blocks(); }
  // From now on TakeFilled() returns the keys of prefix blocks that prompts have filled since its
  // last call.
  void RecordFilled() { reuse_.RecordFilled(); }
  std::vector<PrefixKey> TakeFilled() { return reuse_.TakeFilled(); }

  // How long a request that arrived now would wait.
  QueueForecast Forecast() const { return slo_.Forecast(); }
  const StepTimeModel& step_time() const { return slo_.pacer().step_time(); }
  // The step whose result returned last.
  const StepTaken& last_step() const { return slo_.last_step(); }
  // The work of the newest step in flight. REQUIRES: there is one
  const StepWork& newest_work() const { return ledger_.in_flight().back().work; }

  bool Empty() const { return table_.Empty() && ended_updates_.list.empty(); }
  ServingStats Stats() const;
  // For the status page: O(live and waiting sequences); without the steps.
  ServingView View(TimeUs now) const { return MakeView(State(), Stats(), evicted_entries_, now); }
  // For checks of the invariants above, and for tests that take memory away.
  SchedulerState State() const;
  KvCacheManager& kv_cache() { return kv_cache_; }

 private:
  void BeginBatch(TimeUs now);
  void EndCancelled(TimeUs now);
  void EndLate(TimeUs now);
  void PackStates();
  void SendResolvedPlans();
  bool MustWaitForMask() const;
  bool GrowRunning(TimeUs now);
  void BeginRead(Sequence* sequence);
  void AdmitWaiting(TimeUs now);
  void SendFallback(const Sequence& sequence);
  void Admit(Sequence* sequence, TimeUs now);
  void Resume(Sequence* sequence, TimeUs now);
  bool WaitsForRoom() const;
  void ApplyParts(const StepRecord& step, const StepResult& result, ResultReader* reader,
                  TimeUs now);
  void ApplySamples(const ScheduledPart& part, ResultReader* reader, TimeUs now);
  void ApplyCompactions(const StepRecord& step, const StepResult& result);
  void PromptRead(Sequence* sequence);
  void Compressed(const CacheReport& report, Sequence* sequence);
  void Sampled(int64_t index, const ResultReader::Token& sampled, TimeUs now, Sequence* sequence);
  void End(Ending ending, TimeUs now, Sequence* sequence);
  std::shared_ptr<const Context> Keep(const Sequence& sequence);

  const EngineLimits limits_;
  const SchedulerOptions options_;
  const Tokenizer* const tokenizer_;

  // State, and the parts that decide; each borrows those above it.
  KvCacheManager kv_cache_;
  SequenceTable table_;
  StepLedger ledger_;
  ContextDirectory directory_;
  ContextTable contexts_;
  PromptReuse reuse_;
  SloControl slo_;
  CacheCompactor compactor_;
  Reclaimer reclaimer_;
  Admission admission_;
  BatchBuilder builder_;
  Delivery delivery_;
  MaskSchedule masks_;

  Batch batch_;
  // Updates of caches whose sequences have ended; they come first in the next batch.
  CacheUpdates ended_updates_;
  std::vector<std::pair<RequestHandle, absl::Status>> cancels_;
  bool arena_wanted_ = false;                      // in this step, by a live sequence
  WaitReason wait_reason_ = WaitReason::kArrived;  // of the last admission
  std::vector<Sequence*> growing_;                 // scratch of GrowRunning

  // Since the start.
  uint64_t next_arrival_ = 0, num_steps_ = 0, num_compressed_ = 0, prompt_tokens_ = 0;
  uint64_t evicted_entries_ = 0;  // of sequences that have ended
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SCHEDULER_H_
