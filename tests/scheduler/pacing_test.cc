// Latency targets: the scheduler and a fake engine with the step times of a small machine, under a
// fake clock.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/cache/plan_view.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

EngineLimits Limits(int max_num_seqs = 128) {
  return {.num_layers = 4,
          .num_kv_heads = 2,
          .block_size = 16,
          .num_blocks = 16'000,
          .table_entries = 64'000,
          .max_num_seqs = max_num_seqs,
          .max_model_len = 20'000,
          .prefill_arena_tokens = 20'000};
}

// 2 ms per step, 0.5 ms per row, 1 ms for 20 prompt tokens or for 5,000 token pairs of a prompt.
constexpr TimeUs kStepUs = 2000, kRowUs = 500, kTokenUs = 50;
constexpr double kPairUs = 0.02;

TimeUs StepTime(const Batch& batch) {
  double us = kStepUs + kRowUs * static_cast<double>(batch.NumDecoded());
  for (const TokenRun& run : batch.InArena()) {
    const double layers = (run.part.layer_end - run.part.layer_begin) / 4.0;
    const double tokens = run.part.token_end - run.part.token_begin;
    us += layers * tokens * (kTokenUs + kPairUs * (run.part.token_begin + run.part.token_end) / 2);
  }
  return static_cast<TimeUs>(us);
}

constexpr int kPrompt = 200, kOutput = 50;

struct Answer {
  TimeUs arrived = 0, first = 0, last = 0;
  int tokens = 0;
  std::vector<TimeUs> gaps;  // between its tokens
  std::optional<Failed> failed;
  bool finished = false;
  double Tpot() const { return static_cast<double>(last - first) / std::max(1, tokens - 1); }
};

// The harness, with the times at which its streams receive tokens.
class Machine {
 public:
  explicit Machine(const SchedulerOptions& options = {}, int max_num_seqs = 128)
      : h(Limits(max_num_seqs), options) {
    h.step_time = StepTime;
  }
  RequestHandle Add(const Request& request) {
    const RequestHandle handle = h.Add(request);
    answers[handle].arrived = h.now;
    return handle;
  }
  void Step() {
    h.Step();
    for (auto& [handle, answer] : answers) {
      const Stream& stream = h[handle];
      if (static_cast<int>(stream.token_ids.size()) > answer.tokens) {
        if (answer.tokens == 0) answer.first = h.now;
        if (answer.tokens > 0) answer.gaps.push_back(h.now - answer.last);
        answer.tokens = static_cast<int>(stream.token_ids.size());
        answer.last = h.now;
      }
      answer.finished = stream.finished.has_value();
      answer.failed = stream.failed;
    }
    max_running = std::max(max_running, h.scheduler.Stats().running);
  }
  void RunToEnd() {
    while (!h.scheduler.Empty() && !testing::Test::HasFailure()) Step();
  }
  // Adds requests at random times, `rate` per second on average; then runs to the end.
  void Load(double rate, TimeUs seconds, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::exponential_distribution<double> gap(rate * 1e-6);
    double next = static_cast<double>(h.now) + gap(generator);
    const TimeUs end = h.now + seconds * 1'000'000;
    while (!testing::Test::HasFailure()) {
      if (h.scheduler.Empty()) h.now = std::max(h.now, static_cast<TimeUs>(next));
      if (h.now >= end) break;
      for (; next <= static_cast<double>(h.now); next += gap(generator))
        Add(MakeRequest(kPrompt, kOutput, ++num_requests_));
      Step();
    }
    RunToEnd();
  }
  // Trains the step time model.
  void WarmUp() {
    for (int i = 0; i < 12; ++i) {
      Add(MakeRequest(kPrompt + 30 * i, kOutput, 1'000'000 + i));
      Step();
    }
    RunToEnd();
    answers.clear();
    max_running = 0;
  }

  SchedulerHarness h;
  std::map<RequestHandle, Answer> answers;
  int max_running = 0;

 private:
  uint64_t num_requests_ = 0;
};

TEST(Pacing, StepsAreLearned) {
  Machine machine;
  machine.WarmUp();
  const StepTimeModel& model = machine.h.scheduler.step_time();
  EXPECT_NEAR(model.Predict({.rows = 10}), kStepUs + 10 * kRowUs, 500);
  EXPECT_NEAR(model.Marginal({.prompt_tokens = 100, .prompt_pairs = 10'000}), 5200, 500);
}

TEST(Pacing, ATargetForTpotBoundsTheBatch) {
  const auto run = [](const SchedulerOptions& options) {
    auto machine = std::make_unique<Machine>(options);
    machine->WarmUp();
    for (int i = 0; i < 80; ++i) machine->Add(MakeRequest(kPrompt, kOutput, i));
    machine->RunToEnd();
    return machine;
  };
  const auto slowest = [](const Machine& machine) {
    double most = 0;
    for (const auto& [handle, answer] : machine.answers) most = std::max(most, answer.Tpot());
    return most;
  };
  const auto free = run({});
  EXPECT_GT(slowest(*free), 30'000);
  const auto paced = run({.target_tpot_us = 20'000});
  EXPECT_LE(slowest(*paced), 20'000);
  // The target is used up: 16 rows take 10 ms, and their prompts up to 200 us per step each.
  EXPECT_GT(paced->max_running, 16);
  EXPECT_GT(slowest(*paced), 14'000);
  for (const auto& [handle, answer] : paced->answers) EXPECT_TRUE(answer.finished);
}

TEST(Pacing, ARequestsOwnTpotBoundsTheBatchWhileItRuns) {
  Machine machine;
  machine.WarmUp();
  Request tight = MakeRequest(kPrompt, kOutput, 7);
  tight.slo.tpot_us = 10'000;
  const RequestHandle its = machine.Add(tight);
  for (int i = 0; i < 40; ++i) machine.Add(MakeRequest(kPrompt, kOutput, i));
  while (!machine.h[its].Ended()) machine.Step();
  EXPECT_LE(machine.answers[its].Tpot(), 10'000);
  EXPECT_LT(machine.max_running, 16);
  machine.RunToEnd();
  EXPECT_GT(machine.max_running, 30) << "the others are held to nothing";
}

// A pool with room for all caches uncompressed; attention over their entries dominates a step.
TEST(Pacing, AnOpenBudgetFollowsTheTarget) {
  constexpr TimeUs kPageUs = 20, kTpot = 20'000;
  constexpr int kClients = 80;
  const auto run = [&](const std::string& policy, int clients) {
    auto machine = std::make_unique<Machine>(SchedulerOptions{.target_tpot_us = kTpot});
    machine->h.step_time = [&h = machine->h](const Batch& batch) {
      const ServingStats stats = h.scheduler.Stats();
      const TimeUs pages = stats.pages_total - stats.pages_free;
      return StepTime(batch) + (batch.Decoded().empty() ? 0 : kPageUs * pages);
    };
    machine->WarmUp();
    for (int i = 0; i < clients; ++i) {
      Request request = MakeRequest(kPrompt, kOutput, i);
      request.cache.policy = policy;
      if (policy == "auto") request.cache.min_cache_tokens = 0;
      machine->Add(request);
    }
    const TimeUs begin = machine->h.now;
    machine->RunToEnd();
    return std::pair(std::move(machine), machine->h.now - begin);
  };
  const auto said = [](Machine& machine, RequestHandle handle, const std::string& key) {
    return Reported(machine.h[handle].finished->usage->policy_report, key);
  };
  const auto alone = run("auto", 1).first;
  EXPECT_EQ(said(*alone, alone->answers.begin()->first, "policy"), "full");
  EXPECT_THAT(said(*alone, alone->answers.begin()->first, "why"),
              HasSubstr(" waiting, 20 ms a token the target"));

  const auto [open, open_us] = run("auto", kClients);
  const auto [whole, whole_us] = run("full", kClients);
  int full = 0;
  for (const auto& [handle, answer] : open->answers) {
    ASSERT_TRUE(answer.finished);
    full += said(*open, handle, "policy") == "full";
    EXPECT_LE(answer.Tpot(), 1.1 * kTpot);
  }
  EXPECT_LT(full, kClients / 4);
  EXPECT_GT(open->max_running, 2 * whole->max_running);
  EXPECT_LT(open_us, whole_us);
}

// A prompt of 16,000 tokens among short ones.
TEST(Pacing, ALongPromptLeavesTheOthersTheirPace) {
  Machine machine({.target_tpot_us = 20'000});
  machine.WarmUp();
  for (int i = 0; i < 8; ++i) machine.Add(MakeRequest(kPrompt, 400, i));
  while (machine.h.scheduler.Stats().running < 8) machine.Step();
  const RequestHandle long_one = machine.Add(MakeRequest(16'000, 4, 99));
  machine.RunToEnd();
  EXPECT_TRUE(machine.answers[long_one].finished);
  for (const auto& [handle, answer] : machine.answers) {
    if (handle == long_one) continue;
    std::vector<TimeUs> gaps = answer.gaps;
    std::sort(gaps.begin(), gaps.end());
    EXPECT_LE(gaps.back(), 2 * gaps[gaps.size() / 2]);
    EXPECT_LE(gaps.back(), 25'000);
  }
}

// Goodput at moderate load and far above capacity.
TEST(Pacing, GoodputStaysWhenMoreArrives) {
  constexpr TimeUs kTtft = 1'000'000, kTpot = 20'000, kSeconds = 20;
  const auto goodput = [&](double rate, const SchedulerOptions& options) {
    Machine machine(options);
    machine.WarmUp();
    machine.Load(rate, kSeconds, 17);
    int good = 0, finished = 0;
    for (const auto& [handle, answer] : machine.answers) {
      EXPECT_TRUE(answer.finished || answer.failed.has_value());
      finished += answer.finished;
      good += answer.finished && answer.first - answer.arrived <= kTtft && answer.Tpot() <= kTpot;
      if (!options.target_ttft_us.has_value()) continue;
      if (answer.finished) {
        EXPECT_LE(answer.first - answer.arrived, 1.5 * kTtft);
        continue;
      }
      EXPECT_EQ(answer.failed->reason, "OVERLOADED");
      EXPECT_EQ(answer.failed->status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_GT(answer.failed->retry_after_us, 0);
      EXPECT_EQ(answer.tokens, 0);
    }
    if (options.target_ttft_us.has_value()) {
      EXPECT_GE(good, 0.95 * finished);
    }
    return good / static_cast<double>(kSeconds);
  };
  const SchedulerOptions paced = {.target_ttft_us = kTtft, .target_tpot_us = kTpot};
  // A request takes 10.4 ms of prefill and 50 rows of 0.5 ms, and its share of steps.
  double peak = 0;
  for (const double rate : {10, 15, 20, 25}) peak = std::max(peak, goodput(rate, paced));
  EXPECT_GT(peak, 14);
  for (const double rate : {30, 60, 100}) {
    EXPECT_GE(goodput(rate, paced), 0.9 * peak) << rate << " a second";
    EXPECT_LT(goodput(rate, {}), 0.5 * peak) << "as it would be without targets";
  }
}

// A burst far above capacity, before any step time is known.
TEST(Pacing, GoodputFromTheFirstRequestOn) {
  constexpr TimeUs kTtft = 500'000;
  Machine machine({.target_ttft_us = kTtft});
  for (int i = 0; i < 200; ++i) machine.Add(MakeRequest(kPrompt, kOutput, i));
  machine.Step();
  EXPECT_EQ(machine.h.scheduler.Stats().wait_reason, WaitReason::kTtft);
  EXPECT_EQ(machine.h.scheduler.Stats().waiting, 199);
  machine.RunToEnd();
  int finished = 0;
  for (const auto& [handle, answer] : machine.answers) {
    finished += answer.finished;
    if (answer.finished) {
      EXPECT_LE(answer.first - answer.arrived, 1.2 * kTtft);
    }
  }
  EXPECT_GE(finished, 15);
}

// Batches of answers that share their steps, which take longer or shorter than the pacer's aim.
TEST(Pacing, StepsAreAimedSoThatNineteenOfTwentyAnswersKeepTheTarget) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr double kTarget = 100'000;
  constexpr int kBatch = 20;
  Pacer pacer({}, 512);
  EXPECT_EQ(pacer.tpot_aim(), 0.9);
  double mean_aim = 0, late = 0;
  const auto run = [&](int batches, double slower, double deviation) {
    std::normal_distribution<double> noise(0, deviation);
    mean_aim = late = 0;
    for (int i = 0; i < batches; ++i) {
      const double us = pacer.tpot_aim() * kTarget * slower * std::exp(noise(random));
      for (int j = 0; j < kBatch; ++j) pacer.ObserveTpot(us, kTarget, kBatch);
      late += us > 0.98 * kTarget ? 1.0 / batches : 0.0;
      mean_aim += pacer.tpot_aim() / batches;
    }
  };
  run(100, 1.1, 0.07);
  // Enough answers for a sampling error of a thousandth. Late answers weigh 1, answers in time 0.73
  // on average: late / in time = 0.05 / 0.95 * 0.73 is 3.7 %, which is the upper tail of a normal
  // variable beyond 1.786. The aim fluctuates, so its mean is a little lower.
  run(40'000, 1.1, 0.07);
  EXPECT_NEAR(late, 0.037, 0.01);
  EXPECT_NEAR(mean_aim, 0.98 / 1.1 * std::exp(-1.786 * 0.07), 0.03);
  run(4000, 0.95, 0.02);
  EXPECT_NEAR(pacer.tpot_aim(), 0.9, 0.01) << "as before, once they are in time";
  const double aim = pacer.tpot_aim();
  run(500, 0.4, 0.02);
  EXPECT_EQ(pacer.tpot_aim(), aim) << "no request was kept waiting";
  run(100, 3, 0.02);
  EXPECT_EQ(pacer.tpot_aim(), 0.6) << "and no further";
}

TEST(Pacing, TheMarginIsThe95thPercentile) {
  Pacer pacer({}, 512);
  EXPECT_EQ(pacer.first_token_margin(), 1.0);
  std::mt19937_64 random(3);
  std::lognormal_distribution<double> taken(0.2, 0.3);  // factor over the expected time
  double mean = 0;
  for (int i = 0; i < 4000; ++i) {
    pacer.ObserveFirstToken(1000, 1000 * taken(random), 2000);
    if (i >= 1000) mean += pacer.first_token_margin() / 3000;
  }
  EXPECT_NEAR(mean, std::exp(0.2 + 1.645 * 0.3), 0.15);
  // The margin never falls below 1; an observation without an expectation is ignored.
  for (int i = 0; i < 1000; ++i) pacer.ObserveFirstToken(1000, 100, 2000);
  EXPECT_EQ(pacer.first_token_margin(), 1.0);
  pacer.ObserveFirstToken(0, 1000, 2000);
  EXPECT_EQ(pacer.first_token_margin(), 1.0);
  // An expectation far below the target has little weight.
  for (int i = 0; i < 5; ++i) pacer.ObserveFirstToken(10, 30, 2000);
  EXPECT_LT(pacer.first_token_margin(), 1.01);
}

// A disturbed machine: first tokens are much later than expected; then the disturbance ends.
TEST(Pacing, AMarginThatHasGrownTooWideIsUnlearned) {
  constexpr TimeUs kTtft = 300'000;
  Machine machine({.target_ttft_us = kTtft});
  machine.WarmUp();
  double slower = 1;
  machine.h.step_time = [&slower](const Batch& batch) {
    return static_cast<TimeUs>(slower * StepTime(batch));
  };
  const auto count_served = [&machine](uint64_t seed) {
    machine.answers.clear();
    machine.Load(12, 5, seed);
    int served = 0;
    for (const auto& [handle, answer] : machine.answers) served += answer.finished;
    return served;
  };
  const int at_first = count_served(5);
  EXPECT_GT(at_first, 30);
  slower = 40;
  EXPECT_LT(count_served(6), at_first / 2);
  slower = 1;
  // An idle server admits it: alone it may take twice its time, which is less than the margin.
  const RequestHandle long_one = machine.Add(MakeRequest(10'000, 5));
  machine.RunToEnd();
  EXPECT_TRUE(machine.h[long_one].finished.has_value());
  count_served(7);
  EXPECT_GE(count_served(5), 0.9 * at_first);
}

TEST(Pacing, LateRequestsAreNotPrefilled) {
  Machine machine;
  machine.WarmUp();
  Request late = MakeRequest(10'000, 5);  // 1.5 s
  late.slo.ttft_us = 500'000;
  const RequestHandle target = machine.Add(late);
  late.slo = {};
  late.deadline = machine.h.now + 500'000;
  late.sampling.seed = 2;
  const RequestHandle deadline = machine.Add(late);
  machine.Step();
  for (const RequestHandle handle : {target, deadline}) {
    ASSERT_TRUE(machine.h[handle].failed.has_value());
    EXPECT_EQ(machine.h[handle].failed->reason, "OVERLOADED");
    EXPECT_THAT(std::string(machine.h[handle].failed->status.message()),
                HasSubstr("the first token cannot come within 500 ms"));
    EXPECT_EQ(machine.h[handle].failed->usage->prefill_us, 0);
  }
  EXPECT_THAT(std::string(machine.h[target].failed->status.message()),
              StartsWith("scheduling.slo.ttft_us: "));
  EXPECT_THAT(std::string(machine.h[deadline].failed->status.message()), StartsWith("deadline: "));
  late.deadline = machine.h.now + 3'000'000;
  const RequestHandle in_time = machine.Add(late);
  machine.RunToEnd();
  EXPECT_TRUE(machine.h[in_time].finished.has_value());
}

// The server's target does not apply to prompts that take longer than it even alone.
TEST(Pacing, AServersTargetDoesNotRefuseLongPromptsForEver) {
  Machine machine({.target_ttft_us = 500'000});
  machine.WarmUp();
  const RequestHandle handle = machine.Add(MakeRequest(10'000, 5));
  machine.RunToEnd();
  EXPECT_TRUE(machine.h[handle].finished.has_value());
}

// One tenant sends ten times as much as the other, and both exceed their half.
TEST(Pacing, TenantsGetEqualShares) {
  for (const SchedulerOptions& options :
       {SchedulerOptions{}, SchedulerOptions{.target_tpot_us = 20'000}}) {
    Machine machine(options, 16);
    machine.WarmUp();
    std::map<RequestHandle, std::string> tenants;
    uint64_t seed = 0;
    const auto add = [&](const std::string& tenant, int prompt, int output) {
      Request request = MakeRequest(prompt, output, ++seed);
      request.tenant = tenant;
      tenants[machine.Add(request)] = tenant;
    };
    const TimeUs end = machine.h.now + 20'000'000;
    for (TimeUs next = machine.h.now; machine.h.now < end; machine.Step()) {
      for (; next <= machine.h.now; next += 40'000) {  // 25 per second at a capacity of 15
        for (int i = 0; i < 10; ++i) add("greedy", kPrompt, kOutput);
        add("modest", kPrompt, kOutput);
      }
    }
    std::map<std::string, int> finished;
    for (const auto& [handle, answer] : machine.answers)
      finished[tenants[handle]] += answer.finished;
    EXPECT_GT(finished["modest"], 100);
    EXPECT_NEAR(finished["modest"], finished["greedy"], 0.15 * finished["greedy"]);
    for (const auto& [handle, tenant] : tenants)
      machine.h.scheduler.Cancel(handle, absl::CancelledError("enough"));
    machine.RunToEnd();
  }
}

// Both tenants always have waiting requests of the same kind: their weights set their shares.
TEST(Pacing, TenantsGetSharesByTheirWeights) {
  for (const auto& [weights, share] :
       {std::pair(std::map<std::string, double>{{"gold", 3}}, 0.75),
        std::pair(std::map<std::string, double>{{"gold", 0.5}, {"iron", 2}}, 0.2)}) {
    Machine machine({.tenant_weights = weights}, 16);
    machine.WarmUp();
    std::map<RequestHandle, std::string> tenants;
    for (uint64_t seed = 1; seed <= 800; ++seed) {
      Request request = MakeRequest(kPrompt, kOutput, seed);
      request.tenant = seed % 2 == 0 ? "gold" : "iron";
      tenants[machine.Add(request)] = request.tenant;
    }
    const TimeUs end = machine.h.now + 20'000'000;
    while (machine.h.now < end) machine.Step();
    std::map<std::string, double> tokens;
    for (const auto& [handle, answer] : machine.answers) tokens[tenants[handle]] += answer.tokens;
    const double all = tokens["gold"] + tokens["iron"];
    EXPECT_GT(all, 10'000);
    EXPECT_NEAR(tokens["gold"] / all, share, 0.03);
    for (const auto& [handle, tenant] : tenants)
      machine.h.scheduler.Cancel(handle, absl::CancelledError("enough"));
    machine.RunToEnd();
  }
}

TEST(TenantWeights, AreReadFromText) {
  const auto weights = ParseTenantWeights("a=3,b=0.5,c=d=1e-3,e=1000");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(*weights,
            (std::map<std::string, double>{{"a", 3}, {"b", 0.5}, {"c=d", 0.001}, {"e", 1000}}));
  EXPECT_TRUE(ParseTenantWeights("")->empty());
  const std::string long_name(129, 'x');
  const std::pair<std::string, const char*> cases[] = {
      {"a", "tenant-weights: 'a' is not NAME=WEIGHT"},
      {"a=1,", "tenant-weights: '' is not NAME=WEIGHT"},
      {"=1", "tenant-weights: a tenant's name is empty"},
      {"a=", "tenant-weights: 'a=' has no number after '='; a weight is in (0, 1000]"},
      {"a=x", "'a=x' has no number after '='"},
      {"a=1x", "'a=1x' has no number after '='"},
      {"a=1 ", "'a=1 ' has no number after '='"},
      {"a=0", "tenant-weights: the weight 0 of 'a' is outside (0, 1000]"},
      {"a=-1", "the weight -1 of 'a' is outside (0, 1000]"},
      {"a=1000.5", "the weight 1000.5 of 'a' is outside (0, 1000]"},
      {"a=nan", "the weight nan of 'a' is outside (0, 1000]"},
      {"a=inf", "the weight inf of 'a' is outside (0, 1000]"},
      {"a=1e999", "'a=1e999' has no number after '='"},
      {"a=1,b=2,a=1", "tenant-weights: 'a=1' names a tenant a second time"},
      {long_name + "=1", "tenant-weights: a name has 129 bytes; at most 128"}};
  for (const auto& [text, message] : cases) {
    const absl::Status status = ParseTenantWeights(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text;
  }
  EXPECT_THAT(std::string(ValidateOptions({.tenant_weights = {{"a", 0}}}).message()),
              StartsWith("tenant-weights: the weight 0 of 'a'"));
}

// A tenant that returns after a pause has no saved credit; a small load waits briefly.
TEST(Pacing, AQuietTenantIsServedAtOnceAndNoMoreThanItsShare) {
  Machine machine({}, 16);
  machine.WarmUp();
  uint64_t seed = 0;
  std::vector<RequestHandle> greedy;
  const auto add = [&](const std::string& tenant) {
    Request request = MakeRequest(kPrompt, kOutput, ++seed);
    request.tenant = tenant;
    return machine.Add(request);
  };
  greedy.reserve(300);
  for (int i = 0; i < 300; ++i) greedy.push_back(add("greedy"));
  for (int i = 0; i < 400; ++i) machine.Step();
  const RequestHandle quiet = add("quiet");
  const TimeUs came = machine.h.now;
  while (machine.answers[quiet].tokens == 0) machine.Step();
  EXPECT_LT(machine.h.now - came, 2'000'000) << "hundreds wait before it";
  for (const RequestHandle handle : greedy)
    machine.h.scheduler.Cancel(handle, absl::CancelledError("enough"));
  machine.RunToEnd();
}

// A prompt of two seconds is prefilled; other requests get their part of every step.
TEST(Pacing, ALongPromptIsNoReasonToRefuseShortOnes) {
  Machine machine({.target_ttft_us = 800'000, .target_tpot_us = 20'000});
  machine.WarmUp();
  const RequestHandle long_one = machine.Add(MakeRequest(12'000, 4, 99));
  machine.Step();
  std::vector<RequestHandle> short_ones;
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(machine.h.scheduler.Forecast().reading_us, 0);
    short_ones.push_back(machine.Add(MakeRequest(kPrompt, kOutput, i)));
    while (machine.answers[short_ones.back()].tokens == 0 && !machine.h[short_ones.back()].Ended())
      machine.Step();
  }
  EXPECT_EQ(machine.answers[long_one].tokens, 0) << "it was not in anybody's way";
  machine.RunToEnd();
  for (const RequestHandle handle : short_ones) {
    const Answer& answer = machine.answers[handle];
    ASSERT_TRUE(answer.finished) << answer.failed->status;
    EXPECT_LE(answer.first - answer.arrived, 800'000);
  }
  EXPECT_TRUE(machine.answers[long_one].finished);
}

TEST(Pacing, SaysThatItWaitsForTheTarget) {
  Machine machine({.target_tpot_us = 8'000});
  machine.WarmUp();
  for (int i = 0; i < 20; ++i) machine.Add(MakeRequest(kPrompt, kOutput, i));
  for (int i = 0; i < 5; ++i) machine.Step();
  EXPECT_EQ(machine.h.scheduler.Stats().wait_reason, WaitReason::kTpot);
  machine.RunToEnd();
}

// A large model on a small machine: 20 ms per prompt token. Waiting clients get progress every
// second or two, with and without a decoding sequence.
TEST(Pacing, StepsStayShortWhereTokensTakeLong) {
  constexpr TimeUs kSlowTokenUs = 20'000, kMaxSilenceUs = 2'000'000;
  Machine machine;
  machine.h.step_time = [](const Batch& batch) {
    TimeUs us = 20'000 + 100'000 * static_cast<TimeUs>(batch.NumDecoded());
    for (const TokenRun& run : batch.InArena())
      us += (run.part.token_end - run.part.token_begin) *
            (run.part.layer_end - run.part.layer_begin) * kSlowTokenUs / 4;
    return us;
  };
  const RequestHandle first = machine.h.Add(MakeRequest(1, 1));  // warm-up, as in the daemon
  while (!machine.h[first].finished.has_value()) machine.Step();
  for (const bool beside_decode : {false, true}) {
    SCOPED_TRACE(beside_decode);
    if (beside_decode) machine.h.Add(MakeRequest(1, 1000));
    const RequestHandle longest = machine.h.Add(MakeRequest(1500, 1));
    TimeUs heard_at = machine.h.now;
    while (!machine.h[longest].finished.has_value()) {
      const size_t before = machine.h[longest].progress.size();
      machine.Step();
      ASSERT_LE(machine.h.now - heard_at, kMaxSilenceUs);
      if (machine.h[longest].progress.size() > before) heard_at = machine.h.now;
    }
    EXPECT_GT(machine.h[longest].progress.size(), 10u);
  }
}

}  // namespace
}  // namespace hydrant
