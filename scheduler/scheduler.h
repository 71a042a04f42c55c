// Decides, step by step, who runs: continuous batching, first come first served, admission by the
// compressed size. No clock, no engine, no randomness; `now` is an argument. Owned by one thread;
// a second thread makes grammar masks that take longer than a step may wait (slow_masks.h).
//
// Every step: Schedule(now) -> Batch, the engine executes it, Apply(result, now), TakeEvents(). The
// next step may be scheduled before the last one's result is there: what a sequence was given in a
// step counts from Schedule on, its newest token is left to the device, and what is sampled for a
// sequence that had ended meanwhile is dropped. In Schedule, in this order:
//   1. cancelled and late requests end, their pages are free; other samples of a prompt that has
//   been
//      read are forked from the one that read it, and share its pages;
//   2. caches are cut whose plans say so now; running sequences get the page they need for their
//      next entry. When pool or tables are dry, another is preempted (preemption.cc), and waits in
//      its old place of the queue: its cache leaves for the host's memory, where there is room, and
//      comes back as it was; else everything it holds is given up. Nothing is taken from one that
//      was promised all that it may come to hold (OnPressure::kNever);
//   3. the front of the queue is admitted, and the next, until one does not fit, now or later, when
//   those that run have grown as far as they are likely to (pool_forecast.h), or would make steps
//   take longer than a target says (pacer.h): first come, first served. Who can no longer
//   have its first token in time is refused. Who asked for the full cache and finds no room for it
//   is admitted with less, where the operator says so (policy_under_pressure). Who finds a prompt
//   at work that begins alike lets it go first, and others pass. What need not be read of a prompt
//   lies in pages of another where one still has it, and is shared;
//      All pages of what is kept of the known tokens are taken at once; a watermark stays free for
//      growth, and for one that was preempted also what the live ones will want while it catches
//      up, so that it does not bounce;
//   4. prompts are read under a budget (prefill_planner.h), and every running sequence decodes one
//      token.
// What follows a compressed prompt, a question or a conversation's next turn, is read as a prompt
// is (4), behind the cache that is there, where the plan allows it (CachePlan::AppendsRuns). A
// preempted or resumed sequence reads its original prompt again, and what followed it as it did
// before; its other known tokens pass through decode rows one at a time. What is sampled on the way
// is ignored. With the same seed the stream goes on as if nothing had happened.
//
// Invariants: free + live pages = pool; waiting sequences hold nothing; a page is in as many tables
// as it has owners, and is not written while it is in two.
// Steps run in order, and the updates of a step in the order in which Schedule() makes them
// (CacheUpdates). So a page may be given away as soon as it is freed: every earlier read of the
// page has been scheduled before.
// A sequence alone in the pool can always grow to its max_total_tokens (CheckRequest), and one that
// was promised its pages beside any others: those end, so the front always runs in the end.
#ifndef HYDRANT_SCHEDULER_SCHEDULER_H_
#define HYDRANT_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_space.h"
#include "engine/cache/prefix_cache.h"
#include "engine/cache/prefix_layout.h"
#include "engine/step/batch.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/context_table.h"
#include "scheduler/fair_queue.h"
#include "scheduler/loop_metrics.h"
#include "scheduler/options.h"
#include "scheduler/output_history.h"
#include "scheduler/pacer.h"
#include "scheduler/pool_forecast.h"
#include "scheduler/queue_forecast.h"
#include "scheduler/request.h"
#include "scheduler/request_check.h"
#include "scheduler/sequence.h"
#include "scheduler/slow_masks.h"

namespace hydrant {

struct SchedulerStats {
  int running = 0;
  int prefilling = 0;
  int waiting = 0;                                // preempted ones included
  WaitReason wait_reason = WaitReason::kArrived;  // why they wait
  TimeUs longest_wait_us = 0;  // of requests that have not begun; measured at each progress scan
  int64_t queued_tokens = 0;   // known tokens of the waiting ones
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t pages_spared = 0;  // that sequences would hold more if none had several owners
  int64_t state_pages = 0;   // of the used ones, those that hold scores of others' entries
  uint64_t steps = 0;
  uint64_t preemptions = 0;        // caches that were given up
  uint64_t shrinks = 0;            // caches that were cut for others
  uint64_t compressed = 0;         // requests that were admitted by policy_under_pressure
  uint64_t swaps = 0;              // and those that left for the host's memory
  int64_t swapped_pages = 0;       // that are there
  uint64_t prompt_tokens = 0;      // read, each prompt once
  uint64_t generation_tokens = 0;  // sampled and used
  PrefixCacheStats prefix_cache;
  int64_t contexts = 0;
  uint64_t contexts_evicted = 0;  // that left because others wanted their room
};

struct ServingView;   // scheduler/serving_view.h
struct SequenceView;  // the same

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

  // The work of a step; valid until the next Schedule(). Has work whenever anything is live, but
  // for those whose last token is on its way. A batch with work is a step in flight until its
  // Apply().
  const Batch& Schedule(TimeUs now);
  // REQUIRES: `result` answers the oldest step in flight.
  void Apply(const StepResult& result, TimeUs now);
  // Ends every request, when the engine is lost or the loop stops, and forgets the steps in flight.
  void FailAll(const absl::Status& status, const std::string& reason, TimeUs now);
  // Thread-safe: requests that go on from a context are resolved before they are checked and added.
  const ContextDirectory& contexts() const { return directory_; }
  // Whether a step that moves pages to or from the host's memory is to come, or has not come back.
  bool SwapsUnderWay() const;
  // For whoever reads or writes these pages, between steps. REQUIRES: no swaps are under way
  ContextTable& context_table() { return contexts_; }
  // Whether steps in flight may write prefix blocks that nobody holds any more.
  bool BlocksUnderWay() const { return blocks_under_way_ > 0; }
  // For whoever reads or writes prefix blocks, between steps. REQUIRES: no blocks are under way
  PrefixCache& prefix_cache() { return prefix_cache_; }
  // From now on TakeFilled() says what prompts have left in prefix blocks since its last call.
  void ListFilled() { lists_filled_ = true; }
  std::vector<PrefixKey> TakeFilled() { return std::exchange(filled_, {}); }
  // Events since the last call, in order.
  std::vector<Event> TakeEvents() { return std::exchange(events_, {}); }

  // How long one that came now would wait.
  QueueForecast Forecast() const;
  const StepTimeModel& step_time() const { return pacer_.step_time(); }
  // The step whose result came last.
  const StepTaken& last_step() const { return last_step_; }
  // Of the step that Schedule() gave last. REQUIRES: it had work and is in flight
  const StepWork& newest_work() const { return in_flight_.back().work; }

  bool Empty() const { return sequences_.empty() && ended_updates_.list.empty(); }
  SchedulerStats Stats() const;
  // For people who look, O(what is live and waits); without the steps.
  ServingView View(TimeUs now) const;
  // For tests, O(pool): the invariants above.
  absl::Status CheckInvariants() const;

 private:
  friend class Shortage;  // of tests: takes a part of space_ for a while

  absl::Status CheckPromise(const Sequence& sequence) const;
  absl::Status CheckUpdates() const;
  void EndCancelled(TimeUs now);
  void EndLate(TimeUs now);
  void PackStates();
  void SendDecisions();
  void LookAtMasks();
  void LookAtMask(Sequence* sequence);
  bool HasToWaitForMask() const;
  void GoLive(Sequence* sequence);
  bool IsCutNow(const Sequence& sequence) const;
  void AddCut(Sequence* sequence);
  void CutRunning();
  void GrowRunning(TimeUs now);
  void BeginTurn(Sequence* sequence, const TokenRange& range);
  void LowerPromise(Sequence* sequence);
  bool TryGrow(Sequence* sequence, int64_t tokens, TimeUs now);
  void BeginRead(Sequence* sequence);
  bool TryShrink();
  int32_t ShrinksTo(const Sequence& sequence) const;
  void ShrinkNow(Sequence* sequence, int32_t mean);
  Sequence* PickVictim() const;
  double WorkLostBy(const Sequence& sequence) const;
  void Preempt(Sequence* sequence);
  bool MaySwapOut(const Sequence& sequence) const;
  bool TrySwapOut(Sequence* sequence);
  bool TrySwapIn(Sequence* sequence);
  void DropSwapped(Sequence* sequence);
  void ForgetUpdates(const Sequence& sequence);
  void AdmitWaiting(TimeUs now);
  void Admit(Sequence* sequence, TimeUs now);
  bool TryAdmit(Sequence* sequence);
  bool TryDecideAndOpen(Sequence* sequence);
  bool TryCompressed(Sequence* sequence);
  bool TryOpen(Sequence* sequence);
  void GoOn(Sequence* sequence, TimeUs now);
  static void EndAbsence(Sequence* sequence, TimeUs now);
  CachePlan DecideByRoom(const Sequence& sequence) const;
  bool HasRoomToComeBack(const Sequence& sequence) const;
  void ScheduleDecode(TimeUs now);
  void EditLogits(const Sequence& sequence, int64_t num_tokens, SampledRow* row);
  void SchedulePrefill(TimeUs now);
  void SendProgress(TimeUs now);

  // prompt_sharing.cc.
  void ForkSamples(TimeUs now);
  bool TryFork(Sequence* parent, Sequence* sample, TimeUs now);
  bool WaitsForPrompt(const Sequence& sequence) const;
  std::vector<RequestHandle> AddSamples(Sequence* sequence, PrefillSlice* slice);
  void SampledFirst(RequestHandle handle, const Sequence* parent, TokenId token,
                    const TokenLogprobs* logprobs, TimeUs now);
  void OpenPrefix(Sequence* sequence);
  PrefixLayout LayoutOf(const Sequence& sequence) const;
  // Who fills blocks, and their keys once somebody asks.
  struct PrefixReader {
    const Sequence* sequence = nullptr;
    std::unordered_set<PrefixKey, PrefixKeyHash> fresh;
  };
  int UsableTokens(const Sequence& sequence, const PrefixReader* reader) const;
  void ListPrefixReaders();
  void AddPrefixReader(const Sequence* sequence);
  void AbandonPrefix(Sequence* sequence);
  bool WaitsForPrefix(const Sequence& sequence);

  // pacing.cc.
  StepWork WorkOfPrompt(const Sequence& sequence) const;
  double OutputTokensOf(const Sequence& sequence) const;
  void AddTo(RunningLoad* load, const Sequence& sequence, double pages, double count = 1) const;
  RunningLoad DecodingLoad() const;
  bool KeepsTpot(const Sequence& newcomer) const;
  bool KeepsTpot(const Sequence& newcomer, const CachePlan& plan, int64_t count) const;
  PoolForecast::Holder HolderOf(const Sequence& sequence) const;
  bool FitsLater(const Sequence& newcomer, int64_t shared);
  StepWork WorkAhead() const;
  std::optional<FirstTokenBound> BoundOf(const Sequence& sequence, const StepWork& prompt) const;
  std::optional<TimeUs> BeginBy(const Sequence& sequence, const RunningLoad& load) const;
  void SetBeginBy(Sequence* sequence, std::optional<TimeUs> by);
  double FirstTokenMargin() const;
  bool IsLate(const Sequence& sequence, const RunningLoad& load, TimeUs now) const;
  bool MustLearnFirst(const Sequence& sequence) const;
  void ExpectFirstToken(Sequence* sequence, TimeUs now) const;
  void ObserveFirstToken(Sequence* sequence, TimeUs now);
  void RefuseLate(TimeUs now);
  void Refuse(Sequence* sequence, TimeUs now);
  void ObserveStep(const StepWork& work, TimeUs scheduled_at, TimeUs now);
  void ObserveAdmissions(TimeUs now);
  void ChargeTenants(TimeUs took);
  void ObserveOutput(const Sequence& sequence);
  void ObserveTpot(const Sequence& sequence, TimeUs now);

  void Compressed(Sequence* sequence, const CacheReport& report);
  void Sampled(Sequence* sequence, int64_t index, TokenId token, const TokenLogprobs* logprobs,
               TimeUs now);
  void Finish(Sequence* sequence, FinishReason reason, TimeUs now,
              std::vector<float> embedding = {});
  void EndText(Sequence* sequence, TimeUs now);
  void Pooled(Sequence* sequence, const std::vector<float>& embedding, TimeUs now);
  std::shared_ptr<const Context> Keep(const Sequence& sequence);
  void Fail(Sequence* sequence, absl::Status status, std::string reason, TimeUs now,
            TimeUs retry_after_us = 0);
  void Send(const Sequence& sequence, decltype(Event::what) what);
  void CloseUsage(Sequence* sequence, TimeUs now);
  // Entries of the heads that the plan governs, if there are such heads.
  struct HeldEntries {
    int32_t most = 0;  // of the fullest head
    double mean = 0;
  };
  HeldEntries EntriesOf(const Sequence& sequence) const;
  SequenceView ViewOf(const Sequence& sequence, TimeUs now) const;  // serving_view.cc
  void Remove(Sequence* sequence);

  const EngineLimits limits_;
  const SchedulerOptions options_;
  const Tokenizer* const tokenizer_;
  const int64_t watermark_pages_;

  CacheSpace space_;
  PrefixCache prefix_cache_;
  int blocks_under_way_ = 0;  // steps in flight that may write blocks which were given up
  bool lists_filled_ = false;
  std::vector<PrefixKey> filled_;
  ContextDirectory directory_{limits_};
  ContextTable contexts_;
  int64_t swapped_pages_ = 0;
  // Updates of caches whose sequences have ended; they come first in the next batch.
  CacheUpdates ended_updates_;
  std::unordered_map<RequestHandle, std::unique_ptr<Sequence>> sequences_;
  FairQueue waiting_;
  std::vector<Sequence*> live_;  // prefilling and running, in their order
  std::set<std::pair<TimeUs, RequestHandle>> deadlines_;
  std::set<std::pair<TimeUs, RequestHandle>> begin_by_;  // Sequence::begin_by
  std::vector<std::pair<RequestHandle, absl::Status>> cancels_;
  uint64_t next_arrival_ = 0;
  int64_t queued_tokens_ = 0;
  TimeUs next_progress_scan_ = 0;
  TimeUs longest_wait_us_ = 0;  // at the last progress scan
  bool preempted_in_step_ = false;
  int64_t more_samples_ = 0;                       // that the batch at work draws
  bool arena_wanted_ = false;                      // in this step, by a live sequence
  WaitReason wait_reason_ = WaitReason::kArrived;  // of the last admission

  SlowMasks slow_masks_;
  int64_t mask_steps_left_ = 0;  // what is left of kMaskStepsBesideAStep
  Pacer pacer_;
  StepTaken last_step_;
  AdmissionRate admission_rate_;
  bool somebody_waited_ = false;  // for room, when the last step was scheduled
  int admitted_ = 0;              // for the first time, in this step
  int64_t admitted_tokens_ = 0;
  OutputHistory outputs_;
  PoolForecast pool_forecast_;        // scratch of FitsLater
  std::optional<TimeUs> applied_at_;  // when the last result came, if steps have followed since

  // A sequence's cache between an admission and the next preemption. What is in flight names it, so
  // that a result that comes when the sequence has ended, or holds another cache, finds that out.
  struct CacheId {
    Sequence* sequence = nullptr;
    int32_t preemptions = 0;  // before

    Sequence* Live() const { return sequence->ended ? nullptr : sequence; }
    bool IsOf(const Sequence& other) const {
      return sequence == &other && preemptions == other.usage.preemptions;
    }
    bool IsOpen() const { return sequence->space.IsOpen() && IsOf(*sequence); }
  };
  static CacheId CacheOf(Sequence* sequence);
  static bool Names(const std::vector<CacheId>& caches, const Sequence& sequence);

  // What a row of a batch samples.
  struct ScheduledToken {
    CacheId cache;
    int64_t index = 0;  // among the sequence's tokens; kNothing: the prompt goes on
    bool logprobs = false;
  };
  struct ScheduledSlice : ScheduledToken {
    std::vector<RequestHandle> samples = {};  // of its more_samples
    TokenRange scored = {};                   // of the prompt: what follows each is scored
  };
  static constexpr int64_t kNothing = -1;
  struct StepInFlight {
    std::vector<ScheduledToken> decode;   // [batch.decode.size()]
    std::vector<ScheduledSlice> prefill;  // [batch.prefill.size()]
    std::vector<CacheId> cut;             // [batch.Count<SlotCut>()]
    // Sequences that have ended while this step was the newest: it and older ones may name them.
    std::vector<std::unique_ptr<Sequence>> ended;
    bool swaps = false;
    StepWork work{};
    TimeUs scheduled_at = 0;
  };
  // Hands out a step's logprobs to what is read of it in the order of its batch.
  class LogprobReader {
   public:
    LogprobReader(const StepInFlight& step, const StepResult& result);
    // Null where it has none.
    const TokenLogprobs* Next(const ScheduledToken& row) {
      return row.logprobs ? next_++ : nullptr;
    }
    const TokenLogprobs* NextOfSample(const ScheduledToken& prompt) {
      return prompt.logprobs ? next_of_samples_++ : nullptr;
    }
    std::span<const TokenLogprobs> NextOfPrompt(const ScheduledSlice& slice) {
      const size_t count = slice.scored.end - slice.scored.begin;
      return {std::exchange(next_of_prompts_, next_of_prompts_ + count), count};
    }

   private:
    const TokenLogprobs* next_;             // of decode rows, then of prompts that end
    const TokenLogprobs* next_of_samples_;  // of what else is drawn from these
    const TokenLogprobs* next_of_prompts_;
  };
  void AddPromptLogprobs(Sequence* sequence, const ScheduledSlice& slice,
                         std::span<const TokenLogprobs> of_prompt);
  void AdvancePrompt(Sequence* sequence, const PrefillSlice& slice,
                     std::vector<RequestHandle> samples);
  StepWork WorkOf(const PrefillSlice& slice) const;
  static int64_t SeenAfter(const Sequence& sequence);
  int64_t PromptTokensRead(const Sequence& sequence) const;

  Batch batch_;
  std::deque<StepInFlight> in_flight_;        // oldest first
  StepInFlight spare_;                        // keeps the memory of one that has come back
  std::vector<CacheId> cut_;                  // of the batch at work
  std::vector<Sequence*> prefilling_;         // scratch of SchedulePrefill
  std::vector<Sequence*> growing_;            // scratch of GrowRunning
  std::vector<PrefixReader> prefix_readers_;  // scratch of AdmitWaiting
  std::vector<OpenPrompt> open_prompts_;
  std::vector<Event> events_;
  SchedulerStats totals_;         // only what is counted since the start
  uint64_t evicted_entries_ = 0;  // of sequences that have ended
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SCHEDULER_H_
