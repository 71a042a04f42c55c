// The part of Scheduler that keeps to targets for latencies: it tells the pacer what runs, and ends
// the wait of those whose first token would come too late.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/scheduler.h"

namespace hydrant {

namespace {

// Tokens of an answer whose average is one.
constexpr int64_t kEnoughForTpot = 8;

// Of the tokens from `first` on, which attend to those before them.
StepWork ReadingWork(double first, double tokens, double past) {
  return {.prompt_tokens = tokens - first,
          .prompt_pairs = (tokens * tokens - first * first) / 2 + (tokens - first) * past};
}

}  // namespace

// What is left to read of a prompt, as far as it is known which of it need not be.
StepWork Scheduler::WorkOfPrompt(const Sequence& sequence) const {
  const auto tokens = static_cast<double>(sequence.PrefillTokens().size());
  if (sequence.from != nullptr) {
    const auto seen = static_cast<double>(sequence.from->num_seen);
    return ReadingWork(0, sequence.num_prompt_tokens - seen, seen);
  }
  const int first = sequence.IsWaiting() && !sequence.prefix_keys.empty()
                        ? UsableTokens(sequence, nullptr)
                        : sequence.FirstToken();
  StepWork work = ReadingWork(first, tokens, 0);
  if (sequence.num_prompt_tokens > sequence.num_context_tokens)
    work += ReadingWork(0, sequence.num_prompt_tokens - sequence.num_context_tokens,
                        sequence.num_context_tokens);
  return work;
}

double Scheduler::OutputTokensOf(const Sequence& sequence) const {
  return std::max(1.0, outputs_.MeanOf(sequence.max_total_tokens - sequence.num_prompt_tokens));
}

// So many like it.
void Scheduler::AddTo(RunningLoad* load, const Sequence& sequence, double pages,
                      double count) const {
  load->decode.rows += count;
  load->decode.pages += count * pages;
  load->prompt_us += count * pacer_.ReadingUs(sequence.prompt_work) / OutputTokensOf(sequence);
  const std::optional<TimeUs> tpot = pacer_.Tpot(sequence.slo);
  if (tpot.has_value()) load->tpot = std::min(*tpot, load->tpot.value_or(*tpot));
}

// Of those that decode in the step at work.
RunningLoad Scheduler::DecodingLoad() const {
  RunningLoad load;
  for (const Sequence* sequence : live_) {
    if (sequence->state == SequenceState::kRunning)
      AddTo(&load, *sequence, static_cast<double>(sequence->space.num_pages));
  }
  return load;
}

// One that finds nobody here is always tried.
bool Scheduler::KeepsTpot(const Sequence& newcomer) const {
  return live_.empty() || KeepsTpot(newcomer, newcomer.plan, 1);
}

// Whether those that run and `count` like the newcomer, with this plan, would.
bool Scheduler::KeepsTpot(const Sequence& newcomer, const CachePlan& plan, int64_t count) const {
  RunningLoad load;
  for (const Sequence* sequence : live_)
    AddTo(&load, *sequence, static_cast<double>(sequence->space.num_pages));
  // In the middle of its answer.
  const int64_t tokens =
      std::min<int64_t>(newcomer.max_total_tokens - 1,
                        newcomer.NumKnown() + static_cast<int64_t>(OutputTokensOf(newcomer) / 2));
  AddTo(&load, newcomer, static_cast<double>(space_.PagesFor(plan, tokens)),
        static_cast<double>(count) * static_cast<double>(1 + newcomer.samples.size()));
  return pacer_.KeepsTpot(load);
}

// It has that context when its prompt has been read, and its other known tokens follow one by one.
PoolForecast::Holder Scheduler::HolderOf(const Sequence& sequence) const {
  const int64_t seen = std::max<int64_t>(sequence.num_seen, sequence.num_context_tokens);
  const bool holds = sequence.state == SequenceState::kRunning && sequence.IsSettled();
  const double pages = holds ? static_cast<double>(sequence.space.num_pages)
                             : space_.LikelyPages(sequence.plan, seen);
  PoolForecast::Holder holder = {.pages = pages, .most = pages};
  holder.tokens = static_cast<double>(std::max<int64_t>(0, sequence.NumKnown() - seen));
  const int64_t most = sequence.max_total_tokens - sequence.num_prompt_tokens;
  if (most > 0 && !sequence.only_reads && sequence.pooling == EmbeddingPooling::kNone)
    holder.tokens += outputs_.RestOf(sequence.NumKnown() - sequence.num_prompt_tokens, most);
  // What may be cut for others gives way to them.
  if (sequence.on_pressure == OnPressure::kEvict && MayShrink(sequence.plan)) return holder;
  if (sequence.IsPromised()) {
    holder.most = sequence.IsWaiting()
                      ? space_.PagesFor(sequence.LargestPlan(), sequence.max_total_tokens - 1)
                      : sequence.space.num_pages + sequence.space.promised_pages;
    if (!sequence.IsWaiting()) holder.pages = holder.most;  // nobody else finds them any more
    return holder;
  }
  const int64_t last = seen + static_cast<int64_t>(holder.tokens);
  holder.most = std::max(pages, space_.LikelyPages(sequence.plan, last));
  holder.per_token = static_cast<double>(limits_.num_layers) * limits_.num_kv_heads /
                     static_cast<double>(limits_.block_size);
  return holder;
}

// Whether it and those that run will find their pages until they end, as far as can be told. Who
// would be preempted for want of them waits instead, and nothing is read twice. `shared`: pages
// that it begins with and others hold already.
bool Scheduler::FitsLater(const Sequence& newcomer, int64_t shared) {
  if (live_.empty() || !outputs_.IsKnown()) return true;
  pool_forecast_.Clear();
  for (const Sequence* sequence : live_) pool_forecast_.Add(HolderOf(*sequence));
  PoolForecast::Holder holder = HolderOf(newcomer);
  // Its samples begin with its pages, and each goes on with pages of its own.
  const auto samples = static_cast<double>(1 + newcomer.samples.size());
  holder.most = holder.pages + samples * (holder.most - holder.pages);
  holder.per_token *= samples;
  if (newcomer.IsPromised()) holder.pages = holder.most;
  pool_forecast_.Add(holder);
  // Each owner of a page counts it; so there are more.
  const int64_t pages = space_.NumPages() + space_.NumSparedPages() + shared - watermark_pages_;
  if (pool_forecast_.Fits(static_cast<double>(pages))) return true;
  wait_reason_ = WaitReason::kPages;
  return false;
}

// Of the prompts that are being read, what another waits for: all of it, or less where the first of
// them is long. That one has half of a step's prompt tokens at most while others want them
// (prefill_planner.h).
StepWork Scheduler::WorkAhead() const {
  StepWork left, behind_first;
  bool is_first = true;
  for (const Sequence* sequence : live_) {
    if (sequence->state != SequenceState::kPrefilling) continue;
    StepWork work = sequence->prompt_work;
    const double done = static_cast<double>(PromptTokensRead(*sequence)) /
                        std::max<double>(1, sequence->num_prompt_tokens);
    work.prompt_tokens *= std::max(0.0, 1 - done);
    work.prompt_pairs *= std::max(0.0, 1 - done);
    left += work;
    if (std::exchange(is_first, false)) continue;
    behind_first += work;
    behind_first += work;  // at half the speed
  }
  return behind_first.prompt_tokens < left.prompt_tokens ? behind_first : left;
}

std::optional<FirstTokenBound> Scheduler::BoundOf(const Sequence& sequence,
                                                  const StepWork& prompt) const {
  return BoundFirstToken(options_, sequence.slo, sequence.deadline, sequence.submitted_at,
                         pacer_.ReadingUs(prompt));
}

// When a request that waits must begin so that its first token comes in time; unset: any time.
std::optional<TimeUs> Scheduler::BeginBy(const Sequence& sequence, const RunningLoad& load) const {
  // One that has begun is finished; samples are refused with the one that reads their prompt.
  if (sequence.prefill_started_at.has_value() || sequence.sample_of.has_value())
    return std::nullopt;
  const StepWork work = WorkOfPrompt(sequence);
  const auto bound = BoundOf(sequence, work);
  if (!bound.has_value()) return std::nullopt;
  return bound->by - static_cast<TimeUs>(FirstTokenMargin() * pacer_.ReadingUs(work, load));
}

// One that finds nobody here is always tried: else a margin that has grown too wide would let in
// nobody from whom to learn that it is.
double Scheduler::FirstTokenMargin() const {
  return live_.empty() ? 1.0 : pacer_.first_token_margin();
}

// Who waits past the time when it must have begun is refused, so that those behind it can still be
// in time. How long reading takes changes with what runs, so it is asked again when it is due.
void Scheduler::RefuseLate(TimeUs now) {
  if (begin_by_.empty() || begin_by_.begin()->first > now) return;
  const RunningLoad load = DecodingLoad();
  while (!begin_by_.empty() && begin_by_.begin()->first <= now) {
    const RequestHandle handle = begin_by_.begin()->second;
    begin_by_.erase(begin_by_.begin());
    Sequence* sequence = sequences_.at(handle).get();
    sequence->begin_by.reset();
    const std::optional<TimeUs> by = BeginBy(*sequence, load);
    if (!by.has_value()) continue;
    if (*by > now) {
      SetBeginBy(sequence, *by);
    } else {
      Refuse(sequence, now);
    }
  }
}

void Scheduler::SetBeginBy(Sequence* sequence, std::optional<TimeUs> by) {
  if (sequence->begin_by.has_value()) begin_by_.erase({*sequence->begin_by, sequence->handle});
  sequence->begin_by = by;
  if (by.has_value()) begin_by_.emplace(*by, sequence->handle);
}

// Whether its first token would be late if it began behind the prompts that are being read.
bool Scheduler::IsLate(const Sequence& sequence, const RunningLoad& load, TimeUs now) const {
  if (!sequence.begin_by.has_value()) return false;
  const std::optional<TimeUs> by = BeginBy(sequence, load);
  const double ahead_us = FirstTokenMargin() * pacer_.ReadingUs(WorkAhead(), load);
  return by.has_value() && now + static_cast<TimeUs>(ahead_us) > *by;
}

// As long as it is not known how long prompts take, those that are to be in time are read one after
// the other: else a daemon that starts under load would let in more than it can read.
bool Scheduler::MustLearnFirst(const Sequence& sequence) const {
  const auto is_read = [](const Sequence* s) { return s->state == SequenceState::kPrefilling; };
  return sequence.begin_by.has_value() && !pacer_.step_time().KnowsPrompts() &&
         std::any_of(live_.begin(), live_.end(), is_read);
}

// Of an admitted one, how long after `now`. Unset: nobody asked, or it is not known.
void Scheduler::ExpectFirstToken(Sequence* sequence, TimeUs now) const {
  sequence->expected = {};
  if (!sequence->begin_by.has_value() || !pacer_.step_time().KnowsPrompts()) return;
  StepWork work = WorkAhead();
  work += sequence->prompt_work;
  const TimeUs by = BoundOf(*sequence, sequence->prompt_work)->by;
  sequence->expected = {now, pacer_.ReadingUs(work, DecodingLoad()),
                        static_cast<double>(by - sequence->submitted_at)};
}

void Scheduler::ObserveFirstToken(Sequence* sequence, TimeUs now) {
  if (sequence->first_token_at.has_value()) return;
  sequence->first_token_at = now;
  const auto& [admitted_at, us, allowed_us] = sequence->expected;
  if (us > 0 && sequence->usage.preemptions == 0)
    pacer_.ObserveFirstToken(us, static_cast<double>(now - admitted_at), allowed_us);
}

void Scheduler::Refuse(Sequence* sequence, TimeUs now) {
  const StepWork work = WorkOfPrompt(*sequence);
  const double reading_us = pacer_.ReadingUs(work);
  const FirstTokenBound bound = *BoundOf(*sequence, work);
  const TimeUs most = bound.by - sequence->submitted_at;
  const double queue_us = admission_rate_.UsForRequests(static_cast<double>(waiting_.size()));
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat(bound.what, ": the first token cannot come within ", most / 1000, " ms: after ",
                   (now - sequence->submitted_at) / 1000, " ms in the queue the prompt takes ",
                   static_cast<int64_t>(reading_us / 1000), " ms by itself"));
  Fail(sequence, std::move(status), "OVERLOADED", now,
       RetryAfter(queue_us + reading_us - static_cast<double>(most)));
}

QueueForecast Scheduler::Forecast() const {
  const StepWork ahead = WorkAhead();
  return {.waiting = static_cast<int>(waiting_.size()),
          .tokens = queued_tokens_,
          .rate = admission_rate_,
          .reading_us = ahead.Empty() ? 0 : pacer_.ReadingUs(ahead, DecodingLoad())};
}

StepWork Scheduler::WorkOf(const PrefillSlice& slice) const {
  const double layers =
      static_cast<double>(slice.layer_end - slice.layer_begin) / limits_.num_layers;
  StepWork work = ReadingWork(slice.token_begin, slice.token_end, slice.num_seen);
  work.prompt_tokens *= layers;
  work.prompt_pairs *= layers;
  return work;
}

void Scheduler::ObserveStep(const StepWork& work, TimeUs scheduled_at, TimeUs now) {
  // Steps that follow each other take from one result to the next, whatever the host does between.
  const TimeUs begin = applied_at_.value_or(scheduled_at);
  last_step_ = {
      .begin = begin, .end = now, .work = work, .predicted_us = pacer_.step_time().Predict(work)};
  pacer_.step_time().Observe(work, static_cast<double>(now - begin));
  ChargeTenants(now - begin);
  applied_at_ = Empty() ? std::nullopt : std::optional(now);
}

// For what they decode and hold; for a prompt when it is admitted. One alone need not be charged.
void Scheduler::ChargeTenants(TimeUs took) {
  if (!waiting_.HasSeveralTenants()) return;
  const StepTimeModel& model = pacer_.step_time();
  for (Sequence* sequence : live_) {
    const auto pages = static_cast<double>(sequence->space.num_pages);
    double us = static_cast<double>(took) * pages / static_cast<double>(space_.NumPages());
    if (sequence->state == SequenceState::kRunning)
      us += model.Marginal({.rows = 1, .pages = pages});
    sequence->tenant->Charge(us);
  }
}

void Scheduler::ObserveAdmissions(TimeUs now) {
  admission_rate_.Observe(now, somebody_waited_, std::exchange(admitted_, 0),
                          std::exchange(admitted_tokens_, 0));
  somebody_waited_ = !waiting_.empty() && wait_reason_ != WaitReason::kArrived &&
                     wait_reason_ != WaitReason::kPrefix;
}

// A request has ended by itself.
void Scheduler::ObserveOutput(const Sequence& sequence) {
  const int64_t most = sequence.max_total_tokens - sequence.num_prompt_tokens;
  if (most < 1 || sequence.only_reads || sequence.pooling != EmbeddingPooling::kNone) return;
  outputs_.Observe(sequence.usage.completion_tokens, most);
}

// Who had its room taken meanwhile was not late by its steps.
void Scheduler::ObserveTpot(const Sequence& sequence, TimeUs now) {
  const std::optional<TimeUs> target = pacer_.Tpot(sequence.slo);
  const Usage& usage = sequence.usage;
  const int64_t tokens = usage.completion_tokens - sequence.num_resumed;
  if (!target.has_value() || !sequence.first_token_at.has_value() || tokens < kEnoughForTpot ||
      usage.preemptions + usage.swaps > 0)
    return;
  pacer_.ObserveTpot(
      static_cast<double>(now - *sequence.first_token_at) / static_cast<double>(tokens - 1),
      static_cast<double>(*target), static_cast<double>(live_.size()));
}

}  // namespace hydrant
