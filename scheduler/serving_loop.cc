#include "scheduler/serving_loop.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/mutex.h"
#include "scheduler/published.h"
#include "scheduler/recall.h"
#include "scheduler/request_check.h"
#include "scheduler/request_gate.h"
#include "scheduler/scheduler.h"
#include "scheduler/serving_view.h"

namespace hydrant {

namespace {

TimeUs Now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

absl::Status CheckLimits(const EngineLimits& limits) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"num_layers", limits.num_layers},
      {"num_kv_heads", limits.num_kv_heads},
      {"block_size", limits.block_size},
      {"num_blocks", limits.num_blocks},
      {"table_entries", limits.table_entries},
      {"max_num_seqs", limits.max_num_seqs},
      {"max_model_len", limits.max_model_len},
      {"prefill_arena_tokens", limits.prefill_arena_tokens}};
  for (const auto& [name, value] : sizes) {
    if (value < 1)
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " is below 1"));
  }
  return absl::OkStatus();
}

int64_t UnixMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A seed for a request without one: any of 2^64. Thread safe.
uint64_t DrawSeed() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seeds{device(), device(), device(), device()};
    return std::mt19937_64(seeds);
  }();
  return generator();
}

}  // namespace

// mutex_ guards the state that Submit, Cancel and the loop share; it is never held during a step or
// Deliver(). The scheduler and all members below `Loop thread only` belong to the loop thread.
class ServingLoop::Impl {
 public:
  Impl(StepExecutor* executor, const Tokenizer* tokenizer, const SchedulerOptions& options,
       EventSink* sink)
      : executor_(executor),
        tokenizer_(tokenizer),
        sink_(sink),
        limits_(executor->limits()),
        policy_under_pressure_(options.policy_under_pressure),
        gate_(options),
        kv_events_(UnixMicros()),
        scheduler_(limits_, options, tokenizer) {
    scheduler_.prefix_cache().Watch(&kv_events_);
    stats_ = scheduler_.Stats();
    stats_.last_step_end = Now();
    published_.Store(stats_);
    thread_ = std::thread([this] { Run(); });
  }
  ~Impl() {
    Stop();
    delete view_.load();
  }

  std::variant<Queued, Failed> Submit(std::span<const RequestHandle> handles, Request request);
  void Cancel(RequestHandle handle, const absl::Status& why);
  void Abort(const std::string& owner, const std::string& request_id, const absl::Status& why);
  const ContextDirectory& contexts() const { return scheduler_.contexts(); }
  void RunOnLoop(std::function<void(Scheduler*)> command);
  KvEvents& kv_events() { return kv_events_; }
  void OnPrefixFilled(std::function<void(const std::vector<PrefixKey>&)> callback) {
    scheduler_.RecordFilled();
    on_filled_ = std::move(callback);
  }
  void OnKept(std::function<void(std::shared_ptr<const Context>)> callback) {
    on_kept_ = std::move(callback);
  }
  void OnStep(StepCallback callback) { on_step_ = std::move(callback); }
  ServingStats Stats() const { return published_.Load(); }
  const StepHistograms& histograms() const { return histograms_; }
  absl::Status EngineStatus() const;
  std::unique_ptr<ServingView> RequestView();
  void StopAdmitting();
  bool Idle() const;
  void Stop();

 private:
  struct Arrival {
    RequestHandle handle;
    CheckedRequest request;
    TimeUs submitted_at;
    int64_t NumTokens() const {
      return static_cast<int64_t>(request.request.prompt.size() +
                                  request.request.resume_token_ids.size());
    }
  };
  struct Inbox {
    std::vector<Arrival> arrivals;
    std::vector<std::pair<RequestHandle, absl::Status>> cancels;
    std::vector<std::function<void(Scheduler*)>> commands;
    bool Empty() const { return arrivals.empty() && cancels.empty() && commands.empty(); }
  };

  static std::vector<Arrival> Samples(std::span<const RequestHandle> handles,
                                      CheckedRequest checked);

  std::optional<Failed> Refusal() const HYDRANT_REQUIRES(mutex_);
  void ShowQueue() HYDRANT_REQUIRES(mutex_);

  void Run();
  std::optional<Inbox> WaitForWork();  // nullopt: the loop must stop
  Inbox TakeInbox();
  void Step(Inbox inbox);
  void RunEngine();
  void RunCommands();
  void MarkEngineLost(const absl::Status& why);
  void ObserveBatch(const Batch& batch);
  void ShowStep(const ServingStats& stats, TimeUs now) HYDRANT_REQUIRES(mutex_);
  void ShowView();
  void Publish(std::vector<Event> events);
  void PublishKvEvents() { kv_events_.Publish(static_cast<double>(UnixMicros()) * 1e-6); }

  StepExecutor* const executor_;
  const Tokenizer* const tokenizer_;
  EventSink* const sink_;
  const EngineLimits limits_;
  const CacheSpec policy_under_pressure_;

  mutable Mutex mutex_;
  std::condition_variable wake_;
  Inbox inbox_ HYDRANT_GUARDED_BY(mutex_);
  RequestGate gate_ HYDRANT_GUARDED_BY(mutex_);
  bool draining_ HYDRANT_GUARDED_BY(mutex_) = false;
  bool stopping_ HYDRANT_GUARDED_BY(mutex_) = false;
  bool delivering_ HYDRANT_GUARDED_BY(mutex_) = false;
  bool keeping_ HYDRANT_GUARDED_BY(mutex_) = false;  // on_kept_ is to be called, or is at work
  ServingStats stats_ HYDRANT_GUARDED_BY(mutex_);

  KvEvents kv_events_;  // the loop thread writes

  // Loop thread only.
  Scheduler scheduler_;
  StepResult result_;
  absl::Status engine_status_;  // other threads may read it once engine_lost_ is set
  TimeUs step_begin_ = 0;
  TimeUs collect_us_ = 0;  // of this step
  TimeUs host_us_ = 0;
  bool stepped_ = false;
  int steps_in_flight_ = 0;
  std::vector<std::function<void(Scheduler*)>> commands_;         // called with null after the end
  std::function<void(const std::vector<PrefixKey>&)> on_filled_;  // may be null
  std::function<void(std::shared_ptr<const Context>)> on_kept_;   // may be null
  StepCallback on_step_;                                          // may be null
  std::vector<std::shared_ptr<const Context>> kept_;              // not yet passed to on_kept_
  int64_t expired_at_ = 0;                                        // last check for expired contexts
  std::array<StepTaken, kMaxViewedSteps> last_steps_;             // ring buffer
  size_t num_steps_ = 0;                                          // steps taken so far

  StepHistograms histograms_;
  Published<ServingStats> published_;  // stats_; stored with mutex_ held
  std::atomic<bool> engine_lost_{false};
  std::atomic<bool> view_wanted_{false};
  std::atomic<ServingView*> view_{nullptr};  // owned by the thread that takes or replaces it

  Mutex join_mutex_;
  std::thread thread_ HYDRANT_GUARDED_BY(join_mutex_);
};

std::optional<Failed> ServingLoop::Impl::Refusal() const {
  if (engine_lost_) return Failed{.status = engine_status_, .reason = "ENGINE_FAULT"};
  if (draining_ || stopping_) {
    return Failed{.status = absl::UnavailableError("draining: no new requests are taken"),
                  .reason = "DRAINING"};
  }
  return std::nullopt;
}

std::variant<Queued, Failed> ServingLoop::Impl::Submit(std::span<const RequestHandle> handles,
                                                       Request request) {
  if (std::cmp_greater(handles.size(), limits_.max_num_seqs)) {
    return Failed{.status = absl::InvalidArgumentError(
                      absl::StrCat("sampling.n: ", handles.size(), " samples exceed max_num_seqs ",
                                   limits_.max_num_seqs, ", the sequences that run at once here")),
                  .reason = "INVALID"};
  }
  const auto num_asked = static_cast<int64_t>(request.prompt.size());
  if (std::optional<Failed> failed = scheduler_.contexts().Resolve(&request, UnixNow()))
    return *failed;
  if (absl::Status status = Recall(*tokenizer_, num_asked, limits_.max_model_len, &request);
      !status.ok())
    return Failed{.status = std::move(status), .reason = "INVALID"};
  std::variant<CheckedRequest, Failed> checked =
      CheckRequest(std::move(request), limits_, *tokenizer_, policy_under_pressure_);
  if (Failed* failed = std::get_if<Failed>(&checked)) return std::move(*failed);
  std::vector<Arrival> samples = Samples(handles, std::move(std::get<CheckedRequest>(checked)));
  const Arrival& first = samples.front();
  const Queued queued{.prompt_tokens = static_cast<int64_t>(first.request.request.prompt.size()),
                      .cache_tokens = first.request.CacheTokens(),
                      .policy_under_pressure = first.request.fallback_plan == nullptr
                                                   ? std::string()
                                                   : first.request.fallback_plan->spec.policy,
                      .seed = *first.request.request.sampling.seed};
  const MutexLock lock(mutex_);
  std::optional<Failed> refused = Refusal();
  if (!refused.has_value()) {
    refused = gate_.Enter(handles, first.request.request, first.submitted_at);
  }
  if (refused.has_value()) return *std::move(refused);
  if (stats_.step_due_since == 0) stats_.step_due_since = first.submitted_at;
  ShowQueue();
  std::move(samples.begin(), samples.end(), std::back_inserter(inbox_.arrivals));
  wake_.notify_one();
  return queued;
}

// The arrivals of a valid request, one per sample.
std::vector<ServingLoop::Impl::Arrival> ServingLoop::Impl::Samples(
    std::span<const RequestHandle> handles, CheckedRequest checked) {
  std::optional<uint64_t>& seed = checked.request.sampling.seed;
  if (!seed.has_value()) seed = DrawSeed();
  const TimeUs now = Now();
  std::vector<Arrival> samples;
  samples.reserve(handles.size());
  samples.push_back({handles.front(), std::move(checked), now});
  for (size_t i = 1; i < handles.size(); ++i) {
    samples.push_back({handles[i], samples.front().request, now});
    Request& sample = samples.back().request.request;
    *sample.sampling.seed += i;
    sample.sample_of = handles.front();
  }
  return samples;
}

void ServingLoop::Impl::Cancel(RequestHandle handle, const absl::Status& why) {
  const MutexLock lock(mutex_);
  const std::vector<RequestHandle> samples = gate_.LiveSamples(handle);
  if (samples.empty()) return;
  for (const RequestHandle sample : samples) inbox_.cancels.emplace_back(sample, why);
  wake_.notify_one();
}

void ServingLoop::Impl::Abort(const std::string& owner, const std::string& request_id,
                              const absl::Status& why) {
  MutexLock lock(mutex_);
  const std::optional<RequestHandle> first = gate_.Find(owner, request_id);
  lock.Unlock();
  if (first.has_value()) Cancel(*first, why);
}

void ServingLoop::Impl::RunOnLoop(std::function<void(Scheduler*)> command) {
  {
    const MutexLock lock(mutex_);
    if (!stopping_) {
      inbox_.commands.push_back(std::move(command));
      wake_.notify_one();
      return;
    }
  }
  command(nullptr);
}

void ServingLoop::Impl::ShowQueue() {
  stats_.waiting = gate_.num_queued_reqs();
  stats_.queued_tokens = gate_.num_queued_tokens();
  published_.Store(stats_);
}

absl::Status ServingLoop::Impl::EngineStatus() const {
  return engine_lost_ ? engine_status_ : absl::OkStatus();
}

void ServingLoop::Impl::StopAdmitting() {
  const MutexLock lock(mutex_);
  draining_ = true;
}

bool ServingLoop::Impl::Idle() const {
  const MutexLock lock(mutex_);
  return gate_.Empty() && !delivering_ && !keeping_;
}

void ServingLoop::Impl::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  const MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void ServingLoop::Impl::Run() {
  while (std::optional<Inbox> inbox = WaitForWork()) Step(*std::move(inbox));
  Inbox last = TakeInbox();  // stopping_ blocks later arrivals
  for (Arrival& arrival : last.arrivals) {
    scheduler_.Add(arrival.handle, std::move(arrival.request), arrival.submitted_at);
  }
  commands_.insert(commands_.end(), std::make_move_iterator(last.commands.begin()),
                   std::make_move_iterator(last.commands.end()));
  for (const auto& command : std::exchange(commands_, {})) command(nullptr);
  // Collects all steps in flight: the executor is free for another loop.
  for (; steps_in_flight_ > 0; --steps_in_flight_) {
    if (!executor_->Collect(&result_).ok()) break;
  }
  scheduler_.FailAll(absl::UnavailableError("the server is stopping"), "DRAINING", Now());
  stepped_ = false;
  Publish(scheduler_.TakeEvents());
}

// With live sequences or steps in flight the loop has work, deadlines included; otherwise only the
// inbox brings work.
std::optional<ServingLoop::Impl::Inbox> ServingLoop::Impl::WaitForWork() {
  MutexLock lock(mutex_);
  const bool live = !scheduler_.Empty() || steps_in_flight_ > 0 || !commands_.empty();
  wake_.wait(lock.native(), [&]() HYDRANT_REQUIRES(mutex_) {
    return stopping_ || live || !inbox_.Empty() || view_wanted_;
  });
  if (stopping_) return std::nullopt;
  return std::exchange(inbox_, {});
}

ServingLoop::Impl::Inbox ServingLoop::Impl::TakeInbox() {
  const MutexLock lock(mutex_);
  return std::exchange(inbox_, {});
}

void ServingLoop::Impl::Step(Inbox inbox) {
  for (Arrival& arrival : inbox.arrivals) {
    scheduler_.Add(arrival.handle, std::move(arrival.request), arrival.submitted_at);
  }
  for (auto& [handle, why] : inbox.cancels) scheduler_.Cancel(handle, std::move(why));
  commands_.insert(commands_.end(), std::make_move_iterator(inbox.commands.begin()),
                   std::make_move_iterator(inbox.commands.end()));
  step_begin_ = Now();
  stepped_ = false;
  collect_us_ = 0;
  if (engine_status_.ok()) {
    RunEngine();
  } else {
    scheduler_.FailAll(engine_status_, "ENGINE_FAULT", step_begin_);
  }
  // Before any client receives the end of prefill.
  if (on_filled_ != nullptr) {
    const std::vector<PrefixKey> filled = scheduler_.TakeFilled();
    if (!filled.empty()) on_filled_(filled);
  }
  PublishKvEvents();
  Publish(scheduler_.TakeEvents());
  if (view_wanted_.exchange(false)) ShowView();
  RunCommands();
  PublishKvEvents();
  host_us_ += Now() - step_begin_ - collect_us_;
}

void ServingLoop::Impl::RunCommands() {
  const int64_t now = UnixNow();
  if (std::exchange(expired_at_, now) != now) {
    for (const ContextId& id : scheduler_.contexts().Expired(now))
      scheduler_.context_table().Remove(id);
  }
  const bool ok = engine_status_.ok();
  if (ok && (scheduler_.HasSwapsInFlight() || scheduler_.HasBlocksInFlight())) return;
  for (const auto& command : std::exchange(commands_, {})) command(ok ? &scheduler_ : nullptr);
  if (kept_.empty()) return;
  for (auto& context : std::exchange(kept_, {})) on_kept_(std::move(context));
  const MutexLock lock(mutex_);
  keeping_ = false;
}

// While the device runs a step, the next one is scheduled and enqueued, and the results of the
// previous one are delivered; on a CPU one after the other.
void ServingLoop::Impl::RunEngine() {
  const Batch& batch = scheduler_.Schedule(step_begin_);
  const bool has_work = batch.HasWork();
  if (has_work) {
    ObserveBatch(batch);
    executor_->Enqueue(batch);
    ++steps_in_flight_;
  }
  if (steps_in_flight_ < (has_work ? limits_.max_steps_in_flight : 1)) return;
  --steps_in_flight_;
  stepped_ = true;
  const TimeUs begin = Now();
  const absl::Status status = executor_->Collect(&result_);
  const TimeUs end = Now();
  collect_us_ = end - begin;
  if (!status.ok()) return MarkEngineLost(status);
  scheduler_.Apply(result_, end);
  last_steps_[num_steps_++ % last_steps_.size()] = scheduler_.last_step();
}

void ServingLoop::Impl::MarkEngineLost(const absl::Status& why) {
  steps_in_flight_ = 0;
  engine_status_ =
      absl::InternalError(absl::StrCat("the engine is lost: ", std::string(why.message())));
  scheduler_.FailAll(engine_status_, "ENGINE_FAULT", Now());
}

void ServingLoop::Impl::ObserveBatch(const Batch& batch) {
  auto tokens = static_cast<double>(batch.NumDecoded());
  for (const TokenRun& run : batch.InArena()) {
    tokens += static_cast<double>(run.part.token_end - run.part.token_begin) *
              (run.part.layer_end - run.part.layer_begin) / limits_.num_layers;
  }
  histograms_.batch_sequences.Observe(static_cast<double>(batch.runs.size()));
  histograms_.batch_tokens.Observe(tokens);
}

// Replaces stats_ by the scheduler's counters and adds the loop's; step_due_since stays.
void ServingLoop::Impl::ShowStep(const ServingStats& stats, TimeUs now) {
  const ServingStats before = std::exchange(stats_, stats);
  stats_.last_step_end = stepped_ ? now : before.last_step_end;
  stats_.last_step_us = stepped_ ? now - step_begin_ : before.last_step_us;
  stats_.step_due_since = before.step_due_since;
  stats_.host_us = host_us_;
  if (!engine_status_.ok()) engine_lost_ = true;
  if (stepped_) histograms_.step_seconds.Observe(static_cast<double>(now - step_begin_) * 1e-6);
}

std::unique_ptr<ServingView> ServingLoop::Impl::RequestView() {
  std::unique_ptr<ServingView> last(view_.exchange(nullptr));
  {
    // Between the loop's test of its condition and its wait, the notice would be lost.
    const MutexLock lock(mutex_);
    view_wanted_ = true;
  }
  wake_.notify_one();
  return last;
}

void ServingLoop::Impl::ShowView() {
  auto view = std::make_unique<ServingView>(scheduler_.View(Now()));
  const size_t size = last_steps_.size();
  for (size_t i = num_steps_ - std::min(num_steps_, size); i < num_steps_; ++i)
    view->steps.push_back(last_steps_[i % size]);
  delete view_.exchange(view.release());
}

// Ids are free before the client receives the end, so that it may reuse them at once; Idle() waits
// for Deliver() and on_kept_.
void ServingLoop::Impl::Publish(std::vector<Event> events) {
  const ServingStats stats = scheduler_.Stats();
  const QueueForecast forecast = scheduler_.Forecast();
  if (stepped_ && on_step_ != nullptr) on_step_(scheduler_.last_step(), stats, events);
  const TimeUs now = Now();
  for (const Event& event : events) {
    const Finished* finished = std::get_if<Finished>(&event.what);
    if (on_kept_ != nullptr && finished != nullptr && finished->context != nullptr)
      kept_.push_back(finished->context);
  }
  {
    const MutexLock lock(mutex_);
    ShowStep(stats, now);
    int64_t inbox_tokens = 0;
    for (const Arrival& arrival : inbox_.arrivals) inbox_tokens += arrival.NumTokens();
    gate_.SetQueue(forecast, static_cast<int>(inbox_.arrivals.size()), inbox_tokens);
    for (const Event& event : events) {
      if (std::holds_alternative<Finished>(event.what) ||
          std::holds_alternative<Failed>(event.what)) {
        gate_.Remove(event.handle);
      }
    }
    if (gate_.Empty()) {
      stats_.step_due_since = 0;
    } else if (stepped_) {
      stats_.step_due_since = now;
    }
    ShowQueue();
    delivering_ = !events.empty();
    keeping_ = !kept_.empty();
  }
  if (events.empty()) return;
  sink_->Deliver(std::move(events));
  const MutexLock lock(mutex_);
  delivering_ = false;
}

absl::StatusOr<std::unique_ptr<ServingLoop>> ServingLoop::Start(StepExecutor* executor,
                                                                const Tokenizer* tokenizer,
                                                                const SchedulerOptions& options,
                                                                EventSink* sink) {
  absl::Status status = ValidateOptions(options);
  if (status.ok()) status = CheckLimits(executor->limits());
  if (status.ok())
    status = CheckPolicyUnderPressure(options.policy_under_pressure, executor->limits());
  if (!status.ok()) return status;
  return std::unique_ptr<ServingLoop>(
      new ServingLoop(std::make_unique<Impl>(executor, tokenizer, options, sink)));
}

ServingLoop::ServingLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServingLoop::~ServingLoop() = default;

std::variant<Queued, Failed> ServingLoop::Submit(RequestHandle handle, Request request) {
  return impl_->Submit({&handle, 1}, std::move(request));
}
std::variant<Queued, Failed> ServingLoop::Submit(std::span<const RequestHandle> handles,
                                                 Request request) {
  return impl_->Submit(handles, std::move(request));
}
void ServingLoop::Cancel(RequestHandle handle, const absl::Status& why) {
  impl_->Cancel(handle, why);
}
void ServingLoop::Abort(const std::string& owner, const std::string& request_id,
                        const absl::Status& why) {
  impl_->Abort(owner, request_id, why);
}
const ContextDirectory& ServingLoop::contexts() const { return impl_->contexts(); }
void ServingLoop::WithContexts(std::function<void(ContextTable*)> command) {
  impl_->RunOnLoop([command = std::move(command)](Scheduler* scheduler) {
    command(scheduler == nullptr ? nullptr : &scheduler->context_table());
  });
}
void ServingLoop::WithPrefixCache(std::function<void(PrefixCache*)> command) {
  impl_->RunOnLoop([command = std::move(command)](Scheduler* scheduler) {
    command(scheduler == nullptr ? nullptr : &scheduler->prefix_cache());
  });
}
KvEvents& ServingLoop::kv_events() { return impl_->kv_events(); }
void ServingLoop::OnPrefixFilled(std::function<void(const std::vector<PrefixKey>&)> callback) {
  impl_->OnPrefixFilled(std::move(callback));
}
void ServingLoop::OnKept(std::function<void(std::shared_ptr<const Context>)> callback) {
  impl_->OnKept(std::move(callback));
}
void ServingLoop::OnStep(StepCallback callback) { impl_->OnStep(std::move(callback)); }
ServingStats ServingLoop::Stats() const { return impl_->Stats(); }
const StepHistograms& ServingLoop::histograms() const { return impl_->histograms(); }
absl::Status ServingLoop::EngineStatus() const { return impl_->EngineStatus(); }
std::unique_ptr<ServingView> ServingLoop::RequestView() { return impl_->RequestView(); }
void ServingLoop::StopAdmitting() { impl_->StopAdmitting(); }
bool ServingLoop::Idle() const { return impl_->Idle(); }
void ServingLoop::Stop() { impl_->Stop(); }

}  // namespace hydrant
