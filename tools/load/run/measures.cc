#include "tools/load/run/measures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hydrant::load {
namespace {

constexpr double kMillis = 1e3;

// Collected values of each distribution.
struct Values {
  std::vector<double> ttft_hit, ttft_miss;
  std::vector<double> ttft, tpot, itl, e2el, queue, tokens_per_message, lateness;
};

void AddTimes(const Outcome& outcome, Values* values) {
  if (!outcome.HasToken()) return;
  values->ttft.push_back(outcome.TimeToFirstToken() * kMillis);
  values->e2el.push_back(outcome.EndToEnd() * kMillis);
  if (outcome.OutputTokens() > 1) values->tpot.push_back(outcome.TimePerOutputToken() * kMillis);
  for (size_t i = 0; i < outcome.messages.size(); ++i) {
    values->tokens_per_message.push_back(outcome.messages[i].tokens);
    if (i > 0)
      values->itl.push_back((outcome.messages[i].at - outcome.messages[i - 1].at) * kMillis);
  }
  if (outcome.has_usage) values->queue.push_back(outcome.queue * kMillis);
  if (outcome.cached_tokens < 0) return;
  (outcome.cached_tokens > 0 ? values->ttft_hit : values->ttft_miss)
      .push_back(outcome.TimeToFirstToken() * kMillis);
}

void AddCompleted(const Outcome& outcome, const Objectives& objectives, Measures* measures) {
  ++measures->completed;
  measures->good += objectives.MetBy(outcome);
  measures->input_tokens += outcome.input_tokens;
  measures->kv_tokens_kept += outcome.kv_tokens_kept;
  measures->kv_tokens_evicted += outcome.kv_tokens_evicted;
  measures->kv_bytes += outcome.kv_bytes;
  measures->kv_bytes_of_full += outcome.kv_bytes_of_full;
  measures->cached_tokens += std::max<int64_t>(outcome.cached_tokens, 0);
  measures->hits += outcome.cached_tokens > 0;
}

void AddEnding(const Outcome& outcome, const Objectives& objectives, Measures* measures) {
  switch (outcome.ending) {
    case Ending::kCompleted:
      return AddCompleted(outcome, objectives, measures);
    case Ending::kFailed:
      ++measures->failed;
      ++measures->errors[ErrorOf(outcome)];
      return;
    case Ending::kFault:
      ++measures->faults;
      return;
    case Ending::kUnfinished:
      ++measures->unfinished;
      return;
  }
}

}  // namespace

std::string ErrorOf(const Outcome& outcome) {
  return outcome.reason.empty() ? outcome.status : outcome.status + " " + outcome.reason;
}

double Quantile(std::span<const double> sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  if (below + 1 >= sorted.size()) return sorted.back();
  return std::lerp(sorted[below], sorted[below + 1], place - static_cast<double>(below));
}

Distribution Describe(std::vector<double>* values) {
  Distribution described;
  if (values->empty()) return described;
  std::sort(values->begin(), values->end());
  described.count = static_cast<int64_t>(values->size());
  const auto count = static_cast<double>(described.count);
  described.mean = std::accumulate(values->begin(), values->end(), 0.0) / count;
  double squares = 0.0;
  for (const double value : *values) squares += (value - described.mean) * (value - described.mean);
  described.deviation = std::sqrt(squares / count);
  described.p50 = Quantile(*values, 0.5);
  described.p90 = Quantile(*values, 0.9);
  described.p95 = Quantile(*values, 0.95);
  described.p99 = Quantile(*values, 0.99);
  described.p999 = Quantile(*values, 0.999);
  described.max = values->back();
  return described;
}

absl::StatusOr<Objectives> Objectives::Parse(std::string_view text) {
  Objectives objectives;
  const std::vector<std::string> parts = absl::StrSplit(absl::string_view(text.data(), text.size()),
                                                        absl::ByAnyChar(" ,"), absl::SkipEmpty());
  for (const std::string& part : parts) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits(':', 1));
    std::optional<double>* to = pair.first == "ttft"   ? &objectives.ttft_ms
                                : pair.first == "tpot" ? &objectives.tpot_ms
                                : pair.first == "itl"  ? &objectives.itl_ms
                                : pair.first == "e2el" ? &objectives.e2el_ms
                                                       : nullptr;
    double limit = 0.0;
    if (to == nullptr || !absl::SimpleAtod(pair.second, &limit) || !(limit > 0.0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("goodput: '", part,
                       "' is no objective; ttft, tpot, itl or e2el with milliseconds above "
                       "0, as ttft:500"));
    }
    *to = limit;
  }
  return objectives;
}

bool Objectives::MetBy(const Outcome& outcome) const {
  if (!outcome.HasToken()) return !Any();
  double longest_gap = 0.0;
  for (size_t i = 1; i < outcome.messages.size(); ++i)
    longest_gap = std::max(longest_gap, outcome.messages[i].at - outcome.messages[i - 1].at);
  const double tpot = outcome.OutputTokens() > 1 ? outcome.TimePerOutputToken() : 0.0;
  return MetBy(outcome.TimeToFirstToken(), tpot, longest_gap, outcome.EndToEnd());
}

bool Objectives::MetBy(double ttft, double tpot, double itl, double e2el) const {
  const auto meets = [](const std::optional<double>& limit, double seconds) {
    return !limit.has_value() || seconds * kMillis <= *limit;
  };
  return meets(ttft_ms, ttft) && meets(tpot_ms, tpot) && meets(itl_ms, itl) && meets(e2el_ms, e2el);
}

Measures Measure(std::span<const Outcome> outcomes, const Objectives& objectives, int arm,
                 double from) {
  Measures measures;
  Values values;
  for (const Outcome& outcome : outcomes) {
    if ((arm >= 0 && outcome.arm != arm) || outcome.intended < from) continue;
    ++measures.requests;
    measures.seconds = std::max(measures.seconds, outcome.ended - from);
    measures.output_tokens += outcome.OutputTokens();
    measures.messages += static_cast<int64_t>(outcome.messages.size());
    measures.bytes_sent += outcome.bytes_sent;
    measures.bytes_received += outcome.bytes_received;
    measures.preemptions += outcome.preemptions;
    values.lateness.push_back((outcome.sent - outcome.intended) * kMillis);
    AddEnding(outcome, objectives, &measures);
    if (outcome.ending == Ending::kCompleted) AddTimes(outcome, &values);
  }
  measures.ttft = Describe(&values.ttft);
  measures.ttft_hit = Describe(&values.ttft_hit);
  measures.ttft_miss = Describe(&values.ttft_miss);
  measures.tpot = Describe(&values.tpot);
  measures.itl = Describe(&values.itl);
  measures.e2el = Describe(&values.e2el);
  measures.queue = Describe(&values.queue);
  measures.tokens_per_message = Describe(&values.tokens_per_message);
  measures.lateness = Describe(&values.lateness);
  return measures;
}

}  // namespace hydrant::load
