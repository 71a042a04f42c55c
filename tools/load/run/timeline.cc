#include "tools/load/run/timeline.h"

#include <algorithm>
#include <cmath>

namespace hydrant::load {
namespace {

constexpr double kLeastStep = 0.1;  // seconds

// Collected values of a window's distributions.
struct SpanValues {
  std::vector<double> ttft, itl, e2el;
};

double StepFor(double seconds, size_t requests) {
  const auto windows = static_cast<double>(std::clamp<size_t>(requests / 10, 20, 120));
  const double least = std::max(kLeastStep, seconds / windows);
  const double power = std::pow(10.0, std::floor(std::log10(least * (1 + 1e-9))));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= least * (1 - 1e-9)) return digit * power;
  }
  return 10.0 * power;
}

class Builder {
 public:
  // The last window includes a remainder below half a step: few events in a short window would give
  // meaningless rates.
  Builder(double seconds, double step)
      : windows_(std::max<size_t>(1, static_cast<size_t>(std::lround(seconds / step)))),
        values_(windows_.size()),
        step_(step) {
    for (Window& window : windows_) window.seconds = step;
    if (seconds > 0.0)
      windows_.back().seconds = seconds - step * static_cast<double>(windows_.size() - 1);
  }

  void Add(const Outcome& outcome, const Objectives& objectives) {
    ++windows_[At(outcome.intended)].due;
    for (const TokenMessage& message : outcome.messages)
      windows_[At(message.at)].output_tokens += message.tokens;
    AddInFlight(outcome.sent, outcome.ended);
    Window& end = windows_[At(outcome.ended)];
    if (outcome.ending == Ending::kFailed) ++end.errors[ErrorOf(outcome)];
    if (outcome.ending != Ending::kCompleted) return;
    ++end.completed;
    end.good += objectives.MetBy(outcome);
    AddTimes(outcome);
  }

  std::vector<Window> Build() {
    for (size_t i = 0; i < windows_.size(); ++i) {
      windows_[i].ttft = Describe(&values_[i].ttft);
      windows_[i].itl = Describe(&values_[i].itl);
      windows_[i].e2el = Describe(&values_[i].e2el);
      windows_[i].in_flight /= windows_[i].seconds;
    }
    return std::move(windows_);
  }

 private:
  size_t At(double seconds) const {
    return std::min(windows_.size() - 1, static_cast<size_t>(std::max(0.0, seconds) / step_));
  }

  void AddInFlight(double from, double to) {
    for (size_t i = At(from); i <= At(to); ++i) {
      const double begin = step_ * static_cast<double>(i);
      windows_[i].in_flight +=
          std::max(0.0, std::min(to, begin + windows_[i].seconds) - std::max(from, begin));
    }
  }

  void AddTimes(const Outcome& outcome) {
    if (!outcome.HasToken()) return;
    SpanValues& due = values_[At(outcome.intended)];
    due.ttft.push_back(outcome.TimeToFirstToken() * 1e3);
    due.e2el.push_back(outcome.EndToEnd() * 1e3);
    for (size_t i = 1; i < outcome.messages.size(); ++i) {
      const double at = outcome.messages[i].at;
      values_[At(at)].itl.push_back((at - outcome.messages[i - 1].at) * 1e3);
    }
  }

  std::vector<Window> windows_;
  std::vector<SpanValues> values_;
  double step_;
};

}  // namespace

Timeline MakeTimeline(std::span<const Outcome> outcomes, const Objectives& objectives, int arm) {
  // All arms of a run share its clock.
  double seconds = 0.0;
  for (const Outcome& outcome : outcomes)
    seconds = std::max({seconds, outcome.intended, outcome.ended});
  Timeline timeline{.step = StepFor(seconds, outcomes.size())};
  Builder builder(seconds, timeline.step);
  for (const Outcome& outcome : outcomes) {
    if (arm < 0 || outcome.arm == arm) builder.Add(outcome, objectives);
  }
  timeline.windows = builder.Build();
  return timeline;
}

}  // namespace hydrant::load
