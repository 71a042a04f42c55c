// The thread that owns scheduler and engine: drain inbox -> Schedule(now) -> Execute -> Apply ->
// deliver. Submit, Cancel, Stats and the shutdown calls are safe from any thread and never wait for
// a step; readers (Stats, histograms) never delay the loop.
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
#include "scheduler/options.h"
#include "scheduler/request.h"
#include "scheduler/serving_stats.h"
#include "scheduler/step_histograms.h"
#include "scheduler/step_time_model.h"

namespace hydrant {

// Receives all events of a step in one call, on the loop thread. Must not block.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Deliver(std::vector<Event> events) = 0;
};

struct ServingView;  // scheduler/serving_view.h

// Facts about an accepted request.
struct Queued {
  int64_t prompt_tokens = 0;            // with those of the context that it continues
  std::optional<int32_t> cache_tokens;  // CheckedRequest::CacheTokens()
  // The policy of CheckedRequest::fallback_plan; empty: it has none.
  std::string policy_under_pressure;
  uint64_t seed = 0;  // of its first sample, drawn where the request named none
};

class ServingLoop {
 public:
  using StepCallback =
      std::function<void(const StepTaken&, const ServingStats&, const std::vector<Event>&)>;

  // Borrowed: executor, tokenizer, sink outlive the loop.
  static absl::StatusOr<std::unique_ptr<ServingLoop>> Start(StepExecutor* executor,
                                                            const Tokenizer* tokenizer,
                                                            const SchedulerOptions& options,
                                                            EventSink* sink);
  ~ServingLoop();  // Stop()

  // Checks and queues. A rejected request returns Failed (status, reason, retry time), and no event
  // follows. The caller chooses `handle` (unique), so that events can be routed before Submit
  // returns.
  std::variant<Queued, Failed> Submit(RequestHandle handle, Request request);
  // The same with a sample for each handle, all of them or none: sample i is drawn with seed + i,
  // and its events name handles[i]. Each sample counts as a queued request. If one fails the others
  // go on. `request_id` is free again when the last has ended. REQUIRES: 1 to kMaxSamples handles;
  // with more than one, nothing is resumed, kept or pooled
  std::variant<Queued, Failed> Submit(std::span<const RequestHandle> handles, Request request);
  // `handle`: the request's first. Idempotent; unknown handles are ignored. Its live samples end
  // with Failed{CANCELLED} (status code given), and their pages are free within two steps.
  void Cancel(RequestHandle handle, const absl::Status& why);
  // The same for the request with this owner and id.
  void Abort(const std::string& owner, const std::string& request_id, const absl::Status& why);

  const ContextDirectory& contexts() const;
  // Calls it on the loop's thread, between steps, when no swap is under way; with null if the loop
  // stops or its engine is lost. It must not block.
  void WithContexts(std::function<void(ContextTable*)> command);
  // The same to read or write prefix blocks.
  void WithPrefixCache(std::function<void(PrefixCache*)> command);
  // Events of prefix blocks; lives as long as the loop.
  KvEvents& kv_events();
  // Called with the keys of the prefix blocks that prompts have filled, on the loop's thread. It
  // must not block. Set it before the first request.
  void OnPrefixFilled(std::function<void(const std::vector<PrefixKey>&)> callback);
  // Called with every context that a request leaves, as WithContexts() calls. Set it before the
  // first request.
  void OnKept(std::function<void(std::shared_ptr<const Context>)> callback);

  // Called after every step, on the loop's thread, with the counts after it and the events that are
  // about to be delivered. It must not block. Set it before the first request.
  void OnStep(StepCallback callback);

  // Take no lock.
  ServingStats Stats() const;
  const StepHistograms& histograms() const;
  // Not ok: the engine is lost, and no request is served any more.
  absl::Status EngineStatus() const;
  // Asks for a view of the pool and its sequences, and returns the view that an earlier call asked
  // for; null: it is not made yet. The loop makes it after the current step, or at once if it is
  // idle. Takes none of the loop's locks, so a call at the moment when the loop falls asleep may be
  // answered with the next call only.
  std::unique_ptr<ServingView> RequestView();

  void StopAdmitting();  // further Submit calls fail with DRAINING
  bool Idle() const;     // nothing is queued or running, and OnKept has had all contexts
  void Stop();  // ends live requests with Failed{DRAINING} (UNAVAILABLE) and joins the thread

 private:
  class Impl;
  explicit ServingLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SERVING_LOOP_H_
