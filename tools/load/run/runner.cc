#include "tools/load/run/runner.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace hydrant::load {
namespace {

constexpr double kNeverDue = std::numeric_limits<double>::infinity();
constexpr double kSecondsToEnd = 2.0;  // for streams to end after an abort

// State of a request in flight.
struct Flight {
  Fault fault = Fault::kNone;
  int64_t cancel_after = 0;
  int64_t tokens = 0;
  bool cancelled = false;
  size_t position = 0;              // index of its outcome
  std::vector<uint32_t> said = {};  // prompt and answer, if another turn follows
};

// A turn waiting for its send time.
struct NextTurn {
  int64_t index = 0;
  std::vector<uint32_t> said = {};  // of all earlier turns
};

class Run {
 public:
  Run(const Workload& workload, const RunOptions& options, Target* target)
      : workload_(workload), options_(options), target_(target) {}

  std::vector<Outcome> Go() {
    while (true) {
      SendDue();
      if (!HasMore() && next_turns_.empty() && flights_.empty()) break;
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
  // Whether conversations are left to begin.
  bool HasMore() const { return !stopped_ && next_ < workload_.num_conversations(); }

  // Start time of the next conversation; infinite while there is no free place.
  double NextBegins() {
    const auto places_taken = static_cast<int64_t>(flights_.size() + next_turns_.size());
    if (!HasMore() || places_taken >= options_.concurrency) return kNeverDue;
    return options_.intended ? Intended() : 0.0;
  }
  double NextTurnIsDue() const {
    return next_turns_.empty() ? kNeverDue : next_turns_.begin()->first;
  }
  double NextDue() { return std::min(NextBegins(), NextTurnIsDue()); }

  double Intended() {
    if (intended_of_ != next_) {
      intended_ = options_.intended(next_);
      intended_of_ = next_;
    }
    return intended_;
  }

  void SendDue() {
    while (true) {
      const double now = target_->Now();
      if (now >= options_.most_seconds ||
          (HasMore() && options_.intended && Intended() >= options_.most_seconds))
        stopped_ = true;
      if (now >= options_.most_seconds) next_turns_.clear();
      const double due = NextDue();
      if (due > now || due == kNeverDue) return;
      if (NextTurnIsDue() <= due) {
        NextTurn turn = std::move(next_turns_.extract(next_turns_.begin()).mapped());
        Send(turn.index, due, std::move(turn.said));
      } else {
        Send(next_++ * workload_.turns(), options_.intended ? due : now, {});
      }
    }
  }

  bool HasAnotherTurn(int64_t index) const {
    return (index + 1) % workload_.turns() != 0 && index + 1 < workload_.size();
  }

  void Send(int64_t index, double intended, std::vector<uint32_t> said) {
    PlannedRequest request = workload_.Make(index);
    request.prompt.insert(request.prompt.begin(), said.begin(), said.end());
    Outcome outcome{.index = request.index, .arm = request.arm, .intended = intended};
    outcome.input_tokens = static_cast<int64_t>(request.prompt.size());
    outcome.sent = target_->Now();
    outcome.bytes_sent = target_->Send(request);
    Flight& flight = flights_[request.index];
    flight = {
        .fault = request.fault, .cancel_after = request.cancel_after, .position = outcomes_.size()};
    outcomes_.push_back(std::move(outcome));
    if (HasAnotherTurn(index)) flight.said = std::move(request.prompt);
    GiveUpIfOrdered(index, &flight);
  }

  // Cancels or disconnects as an injected fault.
  void GiveUpIfOrdered(int64_t index, Flight* flight) {
    const bool disconnects = flight->fault == Fault::kDisconnect;
    if (!disconnects && flight->fault != Fault::kCancel) return;
    if (flight->tokens < flight->cancel_after || std::exchange(flight->cancelled, true)) return;
    disconnects ? target_->Disconnect(index) : target_->Cancel(index);
  }

  void Take(const StreamEvent& event) {
    const auto flight = flights_.find(event.index);
    if (flight == flights_.end()) return;
    Outcome& outcome = outcomes_[flight->second.position];
    outcome.bytes_received += event.bytes;
    if (event.tokens > 0) {
      outcome.messages.push_back({event.at, event.tokens});
      flight->second.tokens += event.tokens;
      if (options_.keep_token_ids)
        outcome.token_ids.insert(outcome.token_ids.end(), event.token_ids.begin(),
                                 event.token_ids.end());
      std::vector<uint32_t>& said = flight->second.said;
      if (!said.empty()) said.insert(said.end(), event.token_ids.begin(), event.token_ids.end());
    }
    if (event.ended) {
      End(event, flight->second, &outcome);
      if (outcome.ending == Ending::kCompleted && HasAnotherTurn(event.index)) {
        const int64_t next = event.index + 1;
        next_turns_.emplace(event.at + workload_.Make(next).think,
                            NextTurn{.index = next, .said = std::move(flight->second.said)});
      }
      flights_.erase(flight);
    } else {
      GiveUpIfOrdered(event.index, &flight->second);
    }
  }

  static void End(const StreamEvent& event, const Flight& flight, Outcome* outcome) {
    outcome->ended = event.at;
    outcome->status = event.status;
    outcome->reason = event.reason;
    outcome->error = event.error;
    outcome->has_usage = event.has_usage;
    if (event.prompt_tokens > 0) outcome->input_tokens = event.prompt_tokens;
    if (event.more_tokens > 0 && outcome->HasToken())
      outcome->messages.back().tokens += static_cast<int32_t>(event.more_tokens);
    outcome->cached_tokens = event.cached_tokens;
    if (event.has_usage) {
      outcome->queue = event.queue;
      outcome->kv_tokens_kept = event.kv_tokens_kept;
      outcome->kv_tokens_evicted = event.kv_tokens_evicted;
      outcome->kv_bytes = event.kv_bytes;
      outcome->kv_bytes_of_full = event.kv_bytes_of_full;
      outcome->preemptions = event.preemptions;
    }
    outcome->ending = EndingOf(event.status, flight);
  }

  // Classifies the ending of a request with an injected fault.
  static Ending EndingOf(const std::string& status, const Flight& flight) {
    const auto as_ordered = [&](bool yes) { return yes ? Ending::kFault : Ending::kFailed; };
    switch (flight.fault) {
      case Fault::kCancel:
        if (status == "OK") return Ending::kCompleted;  // it ended before the fault
        return as_ordered(status == "CANCELLED");
      case Fault::kDeadline:
        if (status == "OK") return Ending::kCompleted;
        // A server may refuse a deadline that it cannot meet.
        return as_ordered(status == "DEADLINE_EXCEEDED" || status == "RESOURCE_EXHAUSTED");
      case Fault::kDisconnect:
        if (status == "OK") return Ending::kCompleted;
        return as_ordered(status == "UNAVAILABLE" || status == "CANCELLED");
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

  // Cancels requests in flight and waits briefly; their outcomes no longer change.
  void BreakOff() {
    stopped_ = true;
    const double end = target_->Now();
    std::unordered_map<int64_t, Flight> open = std::exchange(flights_, {});
    for (auto& [index, flight] : open) {
      outcomes_[flight.position].ended = end;
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
  std::multimap<double, NextTurn> next_turns_;  // by due time
  int64_t next_ = 0;                            // conversation
  int64_t intended_of_ = -1;
  double intended_ = 0.0;
  double next_tick_ = 0.0;
  bool stopped_ = false;
};

}  // namespace

std::vector<Outcome> RunLoad(const Workload& workload, const RunOptions& options, Target* target) {
  return Run(workload, options, target).Go();
}

}  // namespace hydrant::load
