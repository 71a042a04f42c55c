#include "load/runner.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace hydrant {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSecondsToEnd = 2.0;  // that streams have when a run is broken off

// What is remembered of a request in flight.
struct Flight {
  Fault fault = Fault::kNone;
  int64_t cancel_after = 0;
  int64_t tokens = 0;
  bool cancelled = false;
};

class Run {
 public:
  Run(const Workload& workload, const RunOptions& options, Target* target)
      : workload_(workload), options_(options), target_(target) {}

  std::vector<Outcome> Go() {
    while (true) {
      SendWhatIsDue();
      if (!HasMore() && flights_.empty()) break;
      StreamEvent event;
      if (target_->Wait(std::min(NextDue(), next_tick_), &event)) Take(event);
      if (!Tick()) {
        BreakOff();
        break;
      }
    }
    return std::move(outcomes_);
  }

 private:
  bool HasMore() const { return !stopped_ && next_ < workload_.size(); }

  // When the next request is to be sent; never while there is no place for it.
  double NextDue() {
    if (!HasMore() || static_cast<int64_t>(flights_.size()) >= options_.concurrency) return kNever;
    return options_.intended ? Intended() : 0.0;
  }

  double Intended() {
    if (intended_of_ != next_) {
      intended_ = options_.intended(next_);
      intended_of_ = next_;
    }
    return intended_;
  }

  void SendWhatIsDue() {
    while (true) {
      const double now = target_->Now();
      if (now >= options_.most_seconds ||
          (HasMore() && options_.intended && Intended() >= options_.most_seconds))
        stopped_ = true;
      const double due = NextDue();
      if (due > now || due == kNever) return;
      Send(options_.intended ? due : now);
    }
  }

  void Send(double intended) {
    const PlannedRequest request = workload_.Make(next_++);
    Outcome outcome{.index = request.index, .arm = request.arm, .intended = intended};
    outcome.input_tokens = static_cast<int64_t>(request.prompt.size());
    outcome.sent = target_->Now();
    outcome.bytes_sent = target_->Send(request);
    flights_[request.index] = {.fault = request.fault, .cancel_after = request.cancel_after};
    outcomes_.push_back(std::move(outcome));
    if (request.fault == Fault::kCancel && request.cancel_after == 0) Cancel(request.index);
  }

  void Cancel(int64_t index) {
    Flight& flight = flights_[index];
    if (std::exchange(flight.cancelled, true)) return;
    target_->Cancel(index);
  }

  void Take(const StreamEvent& event) {
    const auto flight = flights_.find(event.index);
    if (flight == flights_.end()) return;
    Outcome& outcome = outcomes_[event.index];
    outcome.bytes_received += event.bytes;
    if (event.tokens > 0) {
      outcome.messages.push_back({event.at, event.tokens});
      flight->second.tokens += event.tokens;
      if (options_.keep_token_ids)
        outcome.token_ids.insert(outcome.token_ids.end(), event.token_ids.begin(),
                                 event.token_ids.end());
    }
    if (event.ended) {
      End(event, flight->second, &outcome);
      flights_.erase(flight);
    } else if (flight->second.fault == Fault::kCancel &&
               flight->second.tokens >= flight->second.cancel_after) {
      Cancel(event.index);
    }
  }

  static void End(const StreamEvent& event, const Flight& flight, Outcome* outcome) {
    outcome->ended = event.at;
    outcome->status = event.status;
    outcome->reason = event.reason;
    outcome->error = event.error;
    outcome->has_usage = event.has_usage;
    if (event.has_usage) {
      outcome->input_tokens = event.prompt_tokens;
      outcome->queue = event.queue;
      outcome->kv_tokens_kept = event.kv_tokens_kept;
      outcome->kv_tokens_evicted = event.kv_tokens_evicted;
      outcome->preemptions = event.preemptions;
    }
    outcome->ending = EndingOf(event.status, flight);
  }

  // Whether a fault did what it was to do.
  static Ending EndingOf(const std::string& status, const Flight& flight) {
    const auto as_ordered = [&](bool yes) { return yes ? Ending::kFault : Ending::kFailed; };
    switch (flight.fault) {
      case Fault::kCancel:
        if (status == "OK") return Ending::kCompleted;  // it was faster
        return as_ordered(status == "CANCELLED");
      case Fault::kDeadline:
        if (status == "OK") return Ending::kCompleted;
        return as_ordered(status == "DEADLINE_EXCEEDED");
      case Fault::kOversized:
        return as_ordered(status == "INVALID_ARGUMENT" || status == "RESOURCE_EXHAUSTED");
      case Fault::kMalformed:
        return as_ordered(status == "INVALID_ARGUMENT");
      case Fault::kSlowReader:
      case Fault::kNone:
        break;
    }
    return status == "OK" ? Ending::kCompleted : Ending::kFailed;
  }

  bool Tick() {
    const double now = target_->Now();
    if (now < next_tick_) return true;
    next_tick_ = now + options_.tick;
    return !options_.on_tick ||
           options_.on_tick(now, outcomes_, static_cast<int64_t>(flights_.size()));
  }

  // Cancels what is in flight, and waits a little for its end, which changes nothing any more.
  void BreakOff() {
    stopped_ = true;
    const double end = target_->Now();
    std::unordered_map<int64_t, Flight> open = std::exchange(flights_, {});
    for (auto& [index, flight] : open) {
      outcomes_[index].ended = end;
      if (!flight.cancelled) target_->Cancel(index);
    }
    StreamEvent event;
    while (!open.empty() && target_->Wait(end + kSecondsToEnd, &event)) {
      if (event.ended) open.erase(event.index);
    }
  }

  const Workload& workload_;
  const RunOptions& options_;
  Target* target_;
  std::vector<Outcome> outcomes_;
  std::unordered_map<int64_t, Flight> flights_;
  int64_t next_ = 0;
  int64_t intended_of_ = -1;
  double intended_ = 0.0;
  double next_tick_ = 0.0;
  bool stopped_ = false;
};

}  // namespace

std::vector<Outcome> RunLoad(const Workload& workload, const RunOptions& options, Target* target) {
  return Run(workload, options, target).Go();
}

}  // namespace hydrant
