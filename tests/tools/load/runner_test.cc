#include "tools/load/run/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tools/load/run/arrivals.h"
#include "tools/load/run/measures.h"

namespace hydrant::load {
namespace {

// A server in simulated time: all requests in service get a token every `step` seconds; it stops
// between `stall_from` and `stall_to`.
class FakeTarget final : public Target {
 public:
  double step = 0.01;
  double stall_from = 1e9, stall_to = 1e9;
  std::map<int64_t, PlannedRequest> seen;
  size_t max_in_flight = 0;
  std::string late = "DEADLINE_EXCEEDED";  // status after a deadline
  double looking_costs = 0.0;              // seconds that reading the clock takes

  double Now() override { return now_ += looking_costs; }

  uint64_t Send(const PlannedRequest& request) override {
    seen[request.index] = request;
    const double end = request.deadline > 0.0 ? now_ + request.deadline : 1e9;
    flights_[request.index] = {.next = AfterAStep(now_), .end = end, .left = request.max_tokens};
    max_in_flight = std::max(max_in_flight, flights_.size());
    return 4 * request.prompt.size();
  }

  void Cancel(int64_t index) override { Break(index, "CANCELLED"); }
  void Disconnect(int64_t index) override { Break(index, "UNAVAILABLE"); }

  bool Wait(double until, StreamEvent* event) override {
    auto first = flights_.end();
    for (auto it = flights_.begin(); it != flights_.end(); ++it) {
      if (first == flights_.end() || it->second.NextAt(now_) < first->second.NextAt(now_))
        first = it;
    }
    if (first == flights_.end() || first->second.NextAt(now_) > until) {
      EXPECT_LT(until, 1e8) << "would wait for ever";
      now_ = std::max(now_, until);
      return false;
    }
    Flight& flight = first->second;
    now_ = std::max(now_, flight.NextAt(now_));
    *event = {.index = first->first, .at = now_};
    if (!flight.broken.empty() || now_ >= flight.end) {
      event->ended = true;
      event->status = flight.broken.empty() ? late : flight.broken;
    } else if (seen[first->first].fault == Fault::kMalformed) {
      event->ended = true;
      event->status = "INVALID_ARGUMENT";
    } else if (flight.left == 0) {
      event->ended = true;
      event->status = "OK";
    } else {
      event->tokens = 1;
      event->token_ids = {static_cast<uint32_t>(1000 + flight.left)};
      event->bytes = 10;
      flight.next = --flight.left == 0 ? now_ : AfterAStep(now_);
    }
    if (event->ended) flights_.erase(first);
    return true;
  }

 private:
  struct Flight {
    double next = 0.0;
    double end = 0.0;
    int64_t left = 0;
    std::string broken = {};  // its status
    double NextAt(double now) const { return broken.empty() ? std::min(next, end) : now; }
  };
  void Break(int64_t index, const std::string& status) {
    const auto found = flights_.find(index);
    if (found != flights_.end()) found->second.broken = status;
  }
  double AfterAStep(double now) const {
    const double next = now + step;
    return next >= stall_from && next < stall_to ? stall_to : next;
  }

  double now_ = 0.0;
  std::map<int64_t, Flight> flights_;
};

Workload MakeWorkload(int64_t requests, int64_t output,
                      std::array<double, kNumFaults> faults = {}) {
  WorkloadOptions options;
  options.num_requests = requests;
  options.input_tokens = 5;
  options.output_tokens = output;
  options.vocab_size = 100;
  options.fault_rates = faults;
  options.oversized_tokens = 100;
  return *Workload::Create(options);
}

std::function<double(int64_t)> Every(double seconds) {
  return [seconds](int64_t i) { return seconds * static_cast<double>(i + 1); };
}

TEST(RunnerTest, AnOpenLoopSendsOnTimeAndCountsAll) {
  FakeTarget target;
  const Workload workload = MakeWorkload(100, 20);
  const std::vector<Outcome> outcomes = RunLoad(workload, {.intended = Every(0.005)}, &target);
  ASSERT_EQ(outcomes.size(), 100u);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].index, static_cast<int64_t>(i));
    EXPECT_NEAR(outcomes[i].sent, 0.005 * (i + 1), 1e-9);
    EXPECT_EQ(outcomes[i].ending, Ending::kCompleted);
    EXPECT_EQ(outcomes[i].OutputTokens(), 20);
    EXPECT_NEAR(outcomes[i].TimeToFirstToken(), 0.01, 1e-9);
    EXPECT_NEAR(outcomes[i].TimePerOutputToken(), 0.01, 1e-9);
    EXPECT_EQ(outcomes[i].bytes_sent, 20u);
    EXPECT_EQ(outcomes[i].bytes_received, 200u);
  }
  EXPECT_GT(target.max_in_flight, 30u) << "no request waits for an answer";
}

TEST(RunnerTest, AClosedLoopKeepsItsPlacesTaken) {
  FakeTarget target;
  const Workload workload = MakeWorkload(50, 10);
  const std::vector<Outcome> outcomes = RunLoad(workload, {.concurrency = 5}, &target);
  ASSERT_EQ(outcomes.size(), 50u);
  EXPECT_EQ(target.max_in_flight, 5u);
  EXPECT_NEAR(Measure(outcomes, {}).seconds, 10 * 10 * 0.01, 1e-6) << "ten rounds";
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.sent, outcome.intended);
}

TEST(RunnerTest, AClosedLoopNeedsNoStandingClock) {
  FakeTarget target;
  target.looking_costs = 1e-6;
  const Workload workload = MakeWorkload(50, 10);
  EXPECT_EQ(RunLoad(workload, {.concurrency = 5}, &target).size(), 50u);
}

// Coordinated omission: a server that stalls for two seconds, with at most four requests in flight,
// keeps the generator from sending some 200 others. Each of them waited for the rest of the stall;
// measured from their actual send time their latency would look low.
TEST(RunnerTest, RequestsDelayedByAStallCountTheirWait) {
  FakeTarget target;
  target.stall_from = 1.0;
  target.stall_to = 3.0;
  const Workload workload = MakeWorkload(1000, 1);
  const std::vector<Outcome> outcomes =
      RunLoad(workload, {.intended = Every(0.01), .concurrency = 4}, &target);
  int64_t waited = 0, look_well = 0;
  for (const Outcome& outcome : outcomes) {
    if (outcome.intended < 1.0 || outcome.intended > 2.9) continue;
    waited += outcome.TimeToFirstToken() >= 3.0 - outcome.intended - 1e-9;
    look_well += outcome.messages[0].at - outcome.sent < 0.02;
  }
  EXPECT_EQ(waited, 191) << "all that came within the stall";
  EXPECT_GT(look_well, 180);
  const Measures measures = Measure(outcomes, {});
  EXPECT_NEAR(measures.ttft.max, 2000, 20);
  EXPECT_GT(measures.ttft.p90, 500);
  EXPECT_NEAR(measures.lateness.max, 2000, 60) << "and says that it was late";
}

TEST(RunnerTest, FaultsAreInjected) {
  FakeTarget target;
  const Workload workload = MakeWorkload(400, 30, {0.2, 0.2, 0.1, 0.0, 0.2, 0.2});
  const std::vector<Outcome> outcomes = RunLoad(workload, {.concurrency = 10}, &target);
  std::map<Fault, int> ordered;
  for (const Outcome& outcome : outcomes) {
    const PlannedRequest& request = target.seen[outcome.index];
    ++ordered[request.fault];
    switch (request.fault) {
      case Fault::kCancel:
        EXPECT_EQ(outcome.ending, Ending::kFault);
        EXPECT_EQ(outcome.OutputTokens(), request.cancel_after);
        EXPECT_EQ(outcome.status, "CANCELLED");
        break;
      case Fault::kDisconnect:
        EXPECT_EQ(outcome.ending, Ending::kFault);
        EXPECT_EQ(outcome.OutputTokens(), request.cancel_after);
        EXPECT_EQ(outcome.status, "UNAVAILABLE");
        break;
      case Fault::kDeadline:
        EXPECT_EQ(outcome.ending, Ending::kFault);
        EXPECT_EQ(outcome.status, "DEADLINE_EXCEEDED");
        break;
      case Fault::kMalformed:
        EXPECT_EQ(outcome.ending, Ending::kFault);
        EXPECT_EQ(outcome.status, "INVALID_ARGUMENT");
        break;
      default:
        EXPECT_EQ(outcome.ending, Ending::kCompleted);
        EXPECT_EQ(outcome.OutputTokens(), 30);
    }
  }
  for (const Fault fault :
       {Fault::kCancel, Fault::kDeadline, Fault::kMalformed, Fault::kDisconnect})
    EXPECT_NEAR(ordered[fault], 80, 30);
  EXPECT_EQ(ordered[Fault::kOversized], 0);
}

TEST(RunnerTest, ADeadlineThatCannotBeKeptMayBeRefused) {
  for (const auto& [status, ending] :
       {std::pair("RESOURCE_EXHAUSTED", Ending::kFault), std::pair("INTERNAL", Ending::kFailed)}) {
    FakeTarget target;
    target.late = status;
    const std::vector<Outcome> outcomes =
        RunLoad(MakeWorkload(20, 30, {0.0, 1.0}), {.concurrency = 4}, &target);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.ending, ending) << status;
  }
}

TEST(RunnerTest, AnInterruptedRunKeepsItsResults) {
  FakeTarget target;
  const Workload workload = MakeWorkload(1000, 100);
  RunOptions options{.intended = Every(0.01)};
  options.on_tick = [](double now, const std::vector<Outcome>&, int64_t in_flight) {
    EXPECT_LE(in_flight, 110);
    return now < 2.0;
  };
  const std::vector<Outcome> outcomes = RunLoad(workload, options, &target);
  const Measures measures = Measure(outcomes, {});
  EXPECT_NEAR(measures.requests, 200, 30);
  EXPECT_NEAR(measures.completed, 100, 30);
  EXPECT_EQ(measures.requests, measures.completed + measures.unfinished);
  EXPECT_NEAR(measures.seconds, 2.0, 0.3);
}

Workload MakeConversations(int64_t requests, int64_t turns, double think,
                           std::array<double, kNumFaults> faults = {}) {
  WorkloadOptions options;
  options.num_requests = requests;
  options.input_tokens = 5;
  options.output_tokens = 3;
  options.vocab_size = 100;
  options.turns = turns;
  options.think_seconds = think;
  options.fault_rates = faults;
  return *Workload::Create(options);
}

TEST(RunnerTest, ATurnHasAllThatWasSaidBefore) {
  FakeTarget target;
  const Workload workload = MakeConversations(11, 4, 0.5);
  const std::vector<Outcome> outcomes = RunLoad(workload, {.intended = Every(0.1)}, &target);
  ASSERT_EQ(outcomes.size(), 11u) << "the last conversation has three turns";
  std::map<int64_t, Outcome> by_index;
  for (const Outcome& outcome : outcomes) by_index[outcome.index] = outcome;
  const std::vector<uint32_t> answer = {1003, 1002, 1001};
  for (int64_t conversation = 0; conversation < 3; ++conversation) {
    std::vector<uint32_t> said;
    for (int64_t turn = 0; turn < 4 && 4 * conversation + turn < 11; ++turn) {
      const int64_t index = 4 * conversation + turn;
      const PlannedRequest request = workload.Make(index);
      EXPECT_EQ(request.prompt.size(), 5u);
      said.insert(said.end(), request.prompt.begin(), request.prompt.end());
      EXPECT_EQ(target.seen[index].prompt, said);
      EXPECT_EQ(by_index[index].input_tokens, static_cast<int64_t>(said.size()));
      said.insert(said.end(), answer.begin(), answer.end());
      const double due = turn == 0 ? 0.1 * static_cast<double>(conversation + 1)
                                   : by_index[index - 1].ended + request.think;
      EXPECT_NEAR(by_index[index].intended, due, 1e-9);
      EXPECT_NEAR(by_index[index].sent, due, 1e-9);
      EXPECT_EQ(request.think > 0, turn > 0);
    }
  }
}

TEST(RunnerTest, AConversationKeepsItsPlace) {
  FakeTarget target;
  const Workload workload = MakeConversations(60, 3, 1.0);
  const std::vector<Outcome> outcomes = RunLoad(workload, {.concurrency = 2}, &target);
  ASSERT_EQ(outcomes.size(), 60u);
  EXPECT_LE(target.max_in_flight, 2u);
  // Number of open conversations when another one begins.
  std::map<int64_t, double> last_end;
  for (const Outcome& outcome : outcomes) last_end[outcome.index / 3] = outcome.ended;
  for (const Outcome& outcome : outcomes) {
    if (outcome.index % 3 != 0) continue;
    int open = 0;
    for (const Outcome& other : outcomes) {
      open += other.index % 3 == 0 && other.index != outcome.index && other.sent <= outcome.sent &&
              last_end[other.index / 3] > outcome.sent;
    }
    EXPECT_LE(open, 1);
  }
}

TEST(RunnerTest, AConversationEndsWithATurnThatFails) {
  FakeTarget target;
  const Workload workload = MakeConversations(300, 3, 0.0, {0.3});
  const std::vector<Outcome> outcomes = RunLoad(workload, {.concurrency = 4}, &target);
  EXPECT_LT(outcomes.size(), 300u);
  std::map<int64_t, Ending> endings;
  for (const Outcome& outcome : outcomes) endings[outcome.index] = outcome.ending;
  for (int64_t index = 0; index < 300; ++index) {
    const bool begins = index % 3 == 0;
    const auto before = endings.find(index - 1);
    const bool expected =
        begins || (before != endings.end() && before->second == Ending::kCompleted);
    EXPECT_EQ(endings.contains(index), expected) << index;
  }
}

TEST(RunnerTest, NoTurnIsSentAfterTheLastSecond) {
  FakeTarget target;
  const Workload workload = MakeConversations(3000, 30, 0.1);
  const std::vector<Outcome> outcomes =
      RunLoad(workload, {.intended = Every(0.3), .most_seconds = 1.0}, &target);
  EXPECT_GT(outcomes.size(), 4u) << "three conversations have begun";
  for (const Outcome& outcome : outcomes) EXPECT_LT(outcome.sent, 1.0);
}

TEST(RunnerTest, NothingIsSentAfterTheLastSecond) {
  FakeTarget target;
  const Workload workload = MakeWorkload(1000, 10);
  const std::vector<Outcome> outcomes =
      RunLoad(workload, {.intended = Every(0.01), .most_seconds = 1.005}, &target);
  EXPECT_EQ(outcomes.size(), 100u);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.ending, Ending::kCompleted);
}

}  // namespace
}  // namespace hydrant::load
