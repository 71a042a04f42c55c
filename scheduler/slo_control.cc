#include "scheduler/slo_control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hydrant {

namespace {

// Answers of fewer tokens say little about the mean time per token.
constexpr int64_t kEnoughForTpot = 8;

double NumPages(const Sequence& sequence) {
  return static_cast<double>(sequence.cache.blocks.num_pages);
}

int64_t MaxOutput(const Sequence& sequence) {
  return sequence.progress.max_total_tokens - sequence.progress.num_prompt_tokens;
}

}  // namespace

StepWork ReadingWork(double first, double tokens, double past) {
  return {.prompt_tokens = tokens - first,
          .prompt_pairs = (tokens * tokens - first * first) / 2 + (tokens - first) * past};
}

SloControl::SloControl(const EngineLimits& limits, const SchedulerOptions& options,
                       SequenceTable* table, const KvCacheManager* kv_cache,
                       const PromptReuse* reuse)
    : limits_(limits),
      options_(options),
      table_(*table),
      kv_cache_(*kv_cache),
      reuse_(*reuse),
      pacer_(options, options.max_num_batched_tokens.value_or(limits.prefill_rows)) {}

StepWork SloControl::WorkOfPrompt(const Sequence& sequence) const {
  const SequenceProgress& progress = sequence.progress;
  const auto tokens = static_cast<double>(sequence.PrefillTokens().size());
  if (sequence.request.from != nullptr) {
    const auto seen = static_cast<double>(sequence.request.from->num_seen);
    return ReadingWork(0, progress.num_prompt_tokens - seen, seen);
  }
  const int first = sequence.IsWaiting() && !sequence.request.prefix_keys.empty()
                        ? reuse_.UsableTokens(sequence)
                        : sequence.FirstToken();
  StepWork work = ReadingWork(first, tokens, 0);
  if (progress.num_prompt_tokens > progress.num_context_tokens)
    work += ReadingWork(0, progress.num_prompt_tokens - progress.num_context_tokens,
                        progress.num_context_tokens);
  return work;
}

double SloControl::OutputTokensOf(const Sequence& sequence) const {
  return std::max(1.0, outputs_.MeanOf(MaxOutput(sequence)));
}

// Adds `count` sequences like this one.
void SloControl::AddTo(RunningLoad* load, const Sequence& sequence, double pages,
                       double count) const {
  load->decode.rows += count;
  load->decode.pages += count * pages;
  load->prompt_us +=
      count * pacer_.ReadingUs(sequence.latency.prompt_work) / OutputTokensOf(sequence);
  const std::optional<TimeUs> tpot = pacer_.Tpot(sequence.request.slo);
  if (tpot.has_value()) load->tpot = std::min(*tpot, load->tpot.value_or(*tpot));
}

RunningLoad SloControl::DecodingLoad() const {
  RunningLoad load;
  for (const Sequence* sequence : table_.live()) {
    if (sequence->IsDecoding()) AddTo(&load, *sequence, NumPages(*sequence));
  }
  return load;
}

bool SloControl::KeepsTpot(const Sequence& newcomer) const {
  return table_.live().empty() || KeepsTpot(newcomer, newcomer.cache.plan, 1);
}

bool SloControl::KeepsTpot(const Sequence& newcomer, const CachePlan& plan, int64_t count) const {
  RunningLoad load;
  for (const Sequence* sequence : table_.live()) AddTo(&load, *sequence, NumPages(*sequence));
  // In the middle of its answer.
  const int64_t tokens = std::min<int64_t>(
      newcomer.progress.max_total_tokens - 1,
      newcomer.progress.NumKnown() + static_cast<int64_t>(OutputTokensOf(newcomer) / 2));
  AddTo(&load, newcomer, static_cast<double>(kv_cache_.PagesFor(plan, tokens)),
        static_cast<double>(count) * static_cast<double>(1 + newcomer.samples.size()));
  return pacer_.KeepsTpot(load);
}

// The work of the prompts that are being read before another one's turn comes: all of it, or less
// where the first of them is long. That one takes half of a step's prompt tokens at most while
// others want them (prefill_planner.h).
StepWork SloControl::WorkAhead() const {
  StepWork left, behind_first;
  bool is_first = true;
  for (const Sequence* sequence : table_.live()) {
    if (sequence->phase != Phase::kReading) continue;
    StepWork work = sequence->latency.prompt_work;
    const double done = static_cast<double>(sequence->PromptTokensRead(limits_.num_layers)) /
                        std::max<double>(1, sequence->progress.num_prompt_tokens);
    work.prompt_tokens *= std::max(0.0, 1 - done);
    work.prompt_pairs *= std::max(0.0, 1 - done);
    left += work;
    if (std::exchange(is_first, false)) continue;
    behind_first += work;
    behind_first += work;  // at half the speed
  }
  return behind_first.prompt_tokens < left.prompt_tokens ? behind_first : left;
}

std::optional<FirstTokenBound> SloControl::BoundOf(const Sequence& sequence,
                                                   const StepWork& prompt) const {
  return BoundFirstToken(options_, sequence.request.slo, sequence.request.deadline,
                         sequence.account.submitted_at, pacer_.ReadingUs(prompt));
}

// When a waiting request must begin so that its first token comes in time; unset: any time.
std::optional<TimeUs> SloControl::BeginBy(const Sequence& sequence, const RunningLoad& load) const {
  // A sequence that has begun is finished; samples are refused with the one that reads their
  // prompt.
  if (sequence.account.prefill_started_at.has_value() || sequence.request.sample_of.has_value())
    return std::nullopt;
  const StepWork work = WorkOfPrompt(sequence);
  const auto bound = BoundOf(sequence, work);
  if (!bound.has_value()) return std::nullopt;
  return bound->by - static_cast<TimeUs>(FirstTokenMargin() * pacer_.ReadingUs(work, load));
}

void SloControl::SetBeginBy(Sequence* sequence) {
  if (BoundOf(*sequence, {}).has_value())
    table_.SetBeginBy(sequence, BeginBy(*sequence, DecodingLoad()));
}

// An idle server always admits; otherwise a margin that is too wide could never be corrected.
double SloControl::FirstTokenMargin() const {
  return table_.live().empty() ? 1.0 : pacer_.first_token_margin();
}

Sequence* SloControl::NextLate(TimeUs now) {
  while (Sequence* sequence = table_.PastBeginBy(now)) {
    const std::optional<TimeUs> by = BeginBy(*sequence, DecodingLoad());
    table_.SetBeginBy(sequence, by);
    if (by.has_value() && *by <= now) return sequence;
  }
  return nullptr;
}

bool SloControl::IsLate(const Sequence& sequence, const RunningLoad& load, TimeUs now) const {
  if (!sequence.latency.begin_by.has_value()) return false;
  const std::optional<TimeUs> by = BeginBy(sequence, load);
  const double ahead_us = FirstTokenMargin() * pacer_.ReadingUs(WorkAhead(), load);
  return by.has_value() && now + static_cast<TimeUs>(ahead_us) > *by;
}

bool SloControl::MustLearnFirst(const Sequence& sequence) const {
  const auto is_read = [](const Sequence* s) { return s->phase == Phase::kReading; };
  return sequence.latency.begin_by.has_value() && !pacer_.step_time().HasPromptSamples() &&
         std::any_of(table_.live().begin(), table_.live().end(), is_read);
}

Failed SloControl::Refusal(const Sequence& sequence, TimeUs now) const {
  const StepWork work = WorkOfPrompt(sequence);
  const double reading_us = pacer_.ReadingUs(work);
  const FirstTokenBound bound = *BoundOf(sequence, work);
  const TimeUs submitted_at = sequence.account.submitted_at, most = bound.by - submitted_at;
  const double queue_us = admission_rate_.UsForRequests(static_cast<double>(table_.queue().size()));
  return {.status = absl::ResourceExhaustedError(absl::StrCat(
              bound.what, ": the first token cannot come within ", most / 1000, " ms: after ",
              (now - submitted_at) / 1000, " ms in the queue the prompt takes ",
              static_cast<int64_t>(reading_us / 1000), " ms by itself")),
          .reason = "OVERLOADED",
          .retry_after_us = RetryAfter(queue_us + reading_us - static_cast<double>(most))};
}

QueueForecast SloControl::Forecast() const {
  const StepWork ahead = WorkAhead();
  return {.waiting = static_cast<int>(table_.queue().size()),
          .tokens = table_.queued_tokens(),
          .rate = admission_rate_,
          .reading_us = ahead.Empty() ? 0 : pacer_.ReadingUs(ahead, DecodingLoad())};
}

void SloControl::Admitted(Sequence* sequence, TimeUs now) {
  sequence->latency.prompt_work = WorkOfPrompt(*sequence);
  ExpectFirstToken(sequence, now);
  sequence->tenant->Charge(std::max(1.0, pacer_.ReadingUs(sequence->latency.prompt_work)));
  if (sequence->account.usage.preemptions + sequence->account.usage.swaps > 0) return;
  ++admitted_;
  admitted_tokens_ += sequence->progress.NumKnown();
}

// Unset where the request has no target, or the time is not known.
void SloControl::ExpectFirstToken(Sequence* sequence, TimeUs now) const {
  SequenceLatency& latency = sequence->latency;
  latency.expected = {};
  if (!latency.begin_by.has_value() || !pacer_.step_time().HasPromptSamples()) return;
  StepWork work = WorkAhead();
  work += latency.prompt_work;
  const TimeUs by = BoundOf(*sequence, latency.prompt_work)->by;
  latency.expected = {now, pacer_.ReadingUs(work, DecodingLoad()),
                      static_cast<double>(by - sequence->account.submitted_at)};
}

void SloControl::ObserveFirstToken(Sequence* sequence, TimeUs now) {
  SequenceAccount& account = sequence->account;
  if (account.first_token_at.has_value()) return;
  account.first_token_at = now;
  const auto& [admitted_at, us, allowed_us] = sequence->latency.expected;
  if (us > 0 && account.usage.preemptions == 0)
    pacer_.ObserveFirstToken(us, static_cast<double>(now - admitted_at), allowed_us);
}

void SloControl::ObserveEnd(const Sequence& sequence, TimeUs now) {
  ObserveTpot(sequence, now);
  const int64_t most = MaxOutput(sequence);
  if (most < 1 || sequence.request.prefill_only ||
      sequence.request.pooling != EmbeddingPooling::kNone)
    return;
  outputs_.Observe(sequence.account.usage.completion_tokens, most);
}

// A sequence that was preempted meanwhile was not late by its steps.
void SloControl::ObserveTpot(const Sequence& sequence, TimeUs now) {
  const std::optional<TimeUs> target = pacer_.Tpot(sequence.request.slo);
  const SequenceAccount& account = sequence.account;
  const int64_t tokens = account.usage.completion_tokens - sequence.progress.num_resumed;
  if (!target.has_value() || !account.first_token_at.has_value() || tokens < kEnoughForTpot ||
      account.usage.preemptions + account.usage.swaps > 0)
    return;
  pacer_.ObserveTpot(
      static_cast<double>(now - *account.first_token_at) / static_cast<double>(tokens - 1),
      static_cast<double>(*target), static_cast<double>(table_.live().size()));
}

void SloControl::ObserveAdmissions(TimeUs now, bool waits_for_room) {
  admission_rate_.Observe(now, waits_for_room_, std::exchange(admitted_, 0),
                          std::exchange(admitted_tokens_, 0));
  waits_for_room_ = waits_for_room;
}

void SloControl::ObserveStep(const StepRecord& step, TimeUs now) {
  // Steps that follow each other take from one result to the next, whatever the host does between.
  const TimeUs begin = applied_at_.value_or(step.scheduled_at);
  last_step_ = {.begin = begin,
                .end = now,
                .work = step.work,
                .predicted_us = pacer_.step_time().Predict(step.work)};
  pacer_.step_time().Observe(step.work, static_cast<double>(now - begin));
  ChargeTenants(now - begin);
  applied_at_ = now;
}

// For decoding, and for the pages that sequences hold; a prompt is charged when it is admitted.
void SloControl::ChargeTenants(TimeUs took) {
  if (!table_.queue().HasSeveralTenants()) return;
  const StepTimeModel& model = pacer_.step_time();
  for (Sequence* sequence : table_.live()) {
    const double pages = NumPages(*sequence);
    double us = static_cast<double>(took) * pages / static_cast<double>(kv_cache_.NumPages());
    if (sequence->IsDecoding()) us += model.Marginal({.rows = 1, .pages = pages});
    sequence->tenant->Charge(us);
  }
}

}  // namespace hydrant
