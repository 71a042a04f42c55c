#include "tools/load/run/probe.h"

#include <algorithm>

#include "tools/load/run/arrivals.h"
#include "tools/load/run/runner.h"

namespace hydrant::load {
namespace {

constexpr double kMillisPerSecond = 1e3;

bool IsOpen(const Outcome& outcome) {
  return outcome.ending == Ending::kUnfinished && outcome.ended == 0.0;
}

// Whether an open request has already missed an objective.
bool IsLost(const Outcome& outcome, const Objectives& objectives, double now) {
  const auto beyond = [&](const std::optional<double>& limit, double since) {
    return limit.has_value() && (now - since) * kMillisPerSecond > *limit;
  };
  if (beyond(objectives.e2el_ms, outcome.intended)) return true;
  if (!outcome.HasToken()) return beyond(objectives.ttft_ms, outcome.intended);
  return outcome.TimeToFirstToken() * kMillisPerSecond > objectives.ttft_ms.value_or(1e300) ||
         beyond(objectives.itl_ms, outcome.messages.back().at);
}

void AddWindow(std::span<const Outcome> outcomes, double from, double to, Probe* probe) {
  int64_t tokens = 0;
  double open_seconds = 0.0;
  for (const Outcome& outcome : outcomes) {
    for (const TokenMessage& message : outcome.messages) {
      if (message.at >= from && message.at < to) tokens += message.tokens;
    }
    open_seconds += std::max(0.0, std::min(outcome.ended, to) - std::max(outcome.sent, from));
  }
  probe->output_tokens_per_second = static_cast<double>(tokens) / (to - from);
  probe->in_flight = open_seconds / (to - from);
}

}  // namespace

double SecondsOf(const ProbeOptions& options, double rate) {
  return std::max(options.seconds, static_cast<double>(options.least_requests) / rate);
}

Probe ProbeRate(const Workload& workload, double rate, const ProbeOptions& options, Target* target,
                const std::function<bool(double now, std::span<const Outcome>)>& go_on) {
  Probe probe{.rate = rate};
  probe.seconds = SecondsOf(options, rate);
  const double end = options.warm_up + probe.seconds;
  Arrivals arrivals(RateProfile::Constant(rate), options.burstiness, options.seed);
  bool broken_off = false;
  RunOptions run{.intended = [&](int64_t) { return arrivals.Next(); }, .most_seconds = end};
  run.on_tick = [&](double now, const std::vector<Outcome>& outcomes, int64_t) {
    broken_off = go_on && !go_on(now, outcomes);
    if (broken_off) return false;
    if (now < end) return true;
    if (now >= end + options.drain) return false;
    return std::any_of(outcomes.begin(), outcomes.end(), [&](const Outcome& outcome) {
      return IsOpen(outcome) && !IsLost(outcome, options.objectives, now);
    });
  };
  const std::vector<Outcome> outcomes = RunLoad(workload, run, target);
  probe.complete = !broken_off;
  probe.measures = Measure(outcomes, options.objectives, -1, options.warm_up);
  probe.requests = probe.measures.requests - probe.measures.faults;
  probe.good = probe.measures.good;
  probe.met = probe.complete && probe.requests > 0 && probe.Share() >= options.share;
  AddWindow(outcomes, options.warm_up, end, &probe);
  return probe;
}

}  // namespace hydrant::load
