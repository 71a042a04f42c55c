// hydrant-load's streams against a whole server over a fake engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/relay.h"
#include "tests/server/scrape.h"
#include "tests/server/test_server.h"
#include "tools/load/run/measures.h"
#include "tools/load/run/runner.h"
#include "tools/load/run/workload.h"
#include "tools/load/targets/hydrant_target.h"
#include "tools/load/targets/mix.h"

namespace hydrant::load {
namespace {

using testing::HasSubstr;

std::unique_ptr<HydrantTarget> Connect(const TestServer& server, const std::string& mix) {
  HydrantTargetOptions options;
  options.addresses = {server.address()};
  options.connections = 2;
  options.mix = *ParseMix(mix);
  auto target = HydrantTarget::Create(std::move(options));
  EXPECT_TRUE(target.ok()) << target.status();
  return *std::move(target);
}

WorkloadOptions Options(int64_t requests) {
  WorkloadOptions options;
  options.num_requests = requests;
  options.input_tokens = 20;
  options.output_tokens = 12;
  options.range_ratio = 0.5;
  options.vocab_size = ByteTokenizer::kVocab;
  options.arm_weights = {1, 1};
  return options;
}

// A thousand requests, a third of them misbehaving: every one ends as expected, usage and messages
// agree, and all pages are freed.
TEST(LoadTest, AThousandRequestsWithFaultsAllEnd) {
  TestServer server;
  const auto target = Connect(server, "full,h2o:max_cache_tokens=8");
  WorkloadOptions options = Options(1000);
  options.fault_rates = {0.15, 0.05, 0.0, 0.02, 0.1, 0.1};
  options.fault_deadline = 1e-4;
  options.oversized_tokens = 100'000;
  const Workload workload = *Workload::Create(options);
  target->Start();
  const std::vector<Outcome> outcomes =
      RunLoad(workload, {.concurrency = 50, .keep_token_ids = true}, target.get());
  const Measures measures = Measure(outcomes, {});
  EXPECT_EQ(measures.requests, 1000);
  EXPECT_EQ(measures.failed, 0) << (measures.errors.empty() ? "" : measures.errors.begin()->first);
  EXPECT_EQ(measures.unfinished, 0);
  EXPECT_EQ(measures.completed + measures.faults, 1000);
  EXPECT_GT(measures.faults, 150);
  int disconnected = 0;
  for (const Outcome& outcome : outcomes) {
    const PlannedRequest request = workload.Make(outcome.index);
    if (request.fault == Fault::kDisconnect && outcome.ending == Ending::kFault) {
      EXPECT_EQ(outcome.status, "UNAVAILABLE") << "not a cancel, but a connection that is gone";
      ++disconnected;
    }
    EXPECT_EQ(static_cast<int64_t>(outcome.token_ids.size()), outcome.OutputTokens());
    if (outcome.ending != Ending::kCompleted) continue;
    EXPECT_TRUE(outcome.has_usage);
    EXPECT_EQ(outcome.input_tokens, static_cast<int64_t>(request.prompt.size()));
    EXPECT_EQ(outcome.OutputTokens(), request.max_tokens);
    if (outcome.arm == 1) {
      EXPECT_EQ(outcome.kv_tokens_kept, 8);
    }
    EXPECT_GT(outcome.bytes_received, 0u);
    EXPECT_LE(outcome.intended, outcome.sent);
    EXPECT_LE(outcome.sent, outcome.messages.front().at);
    EXPECT_LE(outcome.messages.back().at, outcome.ended);
  }
  EXPECT_GT(disconnected, 0) << "all answers were faster";
  EXPECT_TRUE(server.WaitUntilEmpty());
}

// Removes the race between an answer and a client that gives up: such a request asks for more than
// is ever generated, and is cancelled when its answer has begun.
class Undecided final : public Target {
 public:
  explicit Undecided(Target* target) : target_(target) {}

  double Now() override { return target_->Now(); }
  uint64_t Send(const PlannedRequest& request) override {
    PlannedRequest sent = request;
    if (request.fault == Fault::kCancel || request.fault == Fault::kDisconnect ||
        request.fault == Fault::kDeadline)
      sent.max_tokens = 1'000'000;
    return target_->Send(sent);
  }
  void Cancel(int64_t index) override { GiveUp(index, &Target::Cancel); }
  void Disconnect(int64_t index) override { GiveUp(index, &Target::Disconnect); }
  bool Wait(double until, StreamEvent* event) override {
    if (!target_->Wait(until, event)) return false;
    answered_.insert(event->index);
    if (const auto due = due_.extract(event->index)) (target_->*due.mapped())(event->index);
    return true;
  }

 private:
  void GiveUp(int64_t index, void (Target::*how)(int64_t)) {
    if (answered_.contains(index)) return (target_->*how)(index);
    due_[index] = how;
  }

  Target* const target_;
  std::set<int64_t> answered_;
  std::map<int64_t, void (Target::*)(int64_t)> due_;
};

// The server's counters match its clients' observations: requests by outcome, errors by reason,
// tokens; at the end every page is free.
TEST(LoadTest, TheScrapeAgreesWithTheReport) {
  TestServerOptions server_options;
  EngineLimits& limits = server_options.limits;
  limits.max_model_len = limits.prefill_arena_tokens = limits.table_entries = 1 << 20;
  limits.num_blocks = 1 << 19;
  TestServer server(server_options);
  const auto connected = Connect(server, "full,h2o:max_cache_tokens=8");
  Undecided target(connected.get());
  WorkloadOptions options = Options(1000);
  options.fault_rates = {0.1, 0.05, 0.02, 0.02, 0.1, 0.05};
  options.fault_deadline = 0.5;
  options.slow_read_delay = 1e-3;
  options.oversized_tokens = 1'100'000;
  const Workload workload = *Workload::Create(options);
  connected->Start();
  const std::vector<Outcome> outcomes = RunLoad(workload, {.concurrency = 50}, &target);
  const Measures measures = Measure(outcomes, {});
  ASSERT_EQ(measures.completed + measures.faults, 1000);
  std::map<std::string, double> by_status, refused;
  double tokens_of_completed = 0, tokens_of_others = 0;
  for (const Outcome& outcome : outcomes) {
    ++by_status[outcome.status];
    if (outcome.status == "INVALID_ARGUMENT" || outcome.status == "RESOURCE_EXHAUSTED")
      ++refused[outcome.reason];
    (outcome.ending == Ending::kCompleted ? tokens_of_completed : tokens_of_others) +=
        static_cast<double>(outcome.OutputTokens());
  }

  Scrape scrape;
  ASSERT_TRUE(WaitFor([&] {  // the last streams' ends may still be in flight
    scrape = ParseScrape(server.MetricsText());
    return scrape.Sum("hydrant_requests_total") + scrape.Sum("hydrant_requests_refused_total") ==
           1000;
  }));
  const auto ended = [&](const std::string& outcome) {
    return scrape["hydrant_requests_total{outcome=\"" + outcome + "\"}"];
  };
  EXPECT_EQ(ended("length") + ended("stop"), measures.completed);
  EXPECT_EQ(ended("length") + ended("stop"), by_status["OK"]);
  EXPECT_EQ(ended("slow_reader") + ended("draining") + ended("error"), 0);
  EXPECT_GT(refused.size(), 0u);
  const auto refused_by = [&](const std::string& reason) {
    return scrape["hydrant_requests_refused_total{reason=\"" + reason + "\"}"];
  };
  for (const auto& [reason, count] : refused) {
    if (reason != "OVERLOADED") {
      EXPECT_EQ(refused_by(reason), count) << reason;
    }
  }
  // A deadline that cannot be met is refused on arrival or while the request waits. If it passes in
  // transit, the client reports it itself and resets its stream.
  EXPECT_EQ(ended("cancelled") + ended("deadline") + ended("overloaded") + refused_by("OVERLOADED"),
            by_status["CANCELLED"] + by_status["DEADLINE_EXCEEDED"] + by_status["UNAVAILABLE"] +
                refused["OVERLOADED"]);

  const auto tokens = [&](const std::string& kind, const std::string& outcome) {
    return scrape["hydrant_request_" + kind + "_tokens_total{outcome=\"" + outcome + "\"}"];
  };
  EXPECT_EQ(tokens("prompt", "length") + tokens("prompt", "stop"), measures.input_tokens);
  EXPECT_EQ(tokens("generation", "length") + tokens("generation", "stop"), tokens_of_completed);
  EXPECT_GE(tokens("generation", "cancelled") + tokens("generation", "deadline"), tokens_of_others);
  EXPECT_EQ(scrape.Sum("hydrant_request_generation_tokens_total"),
            scrape["hydrant_generation_tokens_total"]);

  EXPECT_EQ(scrape["hydrant_pages{state=\"free\"}"], scrape["hydrant_pages_total"]);
  EXPECT_EQ(scrape.Sum("hydrant_live_requests"), 0);
  EXPECT_EQ(scrape["hydrant_queued_tokens"], 0);
}

TEST(LoadTest, AClientGoneBeforeItsRequestIsNotRefused) {
  TestServer server;
  const auto target = Connect(server, "full,full");
  WorkloadOptions options = Options(50);
  options.output_tokens = 1;
  options.fault_rates[static_cast<int>(Fault::kDisconnect) - 1] = 1.0;
  RunLoad(*Workload::Create(options), {.concurrency = 1}, target.get());
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_EQ(server.service->request_metrics().refused.Count("INVALID"), 0u);
}

TEST(LoadTest, KeptAndEvictedEntriesAreTheReports) {
  TestServer server;
  const auto target = Connect(server, "full,h2o:max_cache_tokens=8");
  const Workload workload = *Workload::Create(Options(200));
  target->Start();
  const std::vector<Outcome> outcomes = RunLoad(workload, {.concurrency = 20}, target.get());
  const Measures measures = Measure(outcomes, {});
  ASSERT_EQ(measures.completed, 200);
  const Scrape scrape = ParseScrape(server.MetricsText());
  EXPECT_EQ(scrape.Sum("hydrant_kept_entries_total"), measures.kv_tokens_kept);
  EXPECT_EQ(scrape["hydrant_evicted_entries_total{policy=\"h2o\"}"], measures.kv_tokens_evicted);
  EXPECT_EQ(scrape["hydrant_generation_tokens_total"], measures.output_tokens);
  EXPECT_EQ(scrape["hydrant_prompt_tokens_total"], measures.input_tokens);
  EXPECT_EQ(scrape["hydrant_time_to_first_token_seconds_count"], 200);
  EXPECT_EQ(scrape["hydrant_inter_token_latency_seconds_count"], measures.output_tokens - 200);
}

// A run hits only prefix-cache entries that the same run and arm created.
TEST(LoadTest, ARunFindsNothingThatAnotherOneOrAnotherArmHasRead) {
  TestServerOptions server_options;
  server_options.limits.num_prefix_blocks = 1024;
  TestServer server(server_options);
  WorkloadOptions options = Options(40);
  options.input_tokens = 64;
  options.range_ratio = 0;
  options.arm_weights = {1};
  const auto cached = [&](const std::string& mix, int64_t turns) {
    options.turns = turns;
    const auto target = Connect(server, mix);
    target->Start();
    const auto outcomes = RunLoad(*Workload::Create(options), {.concurrency = 4}, target.get());
    const Measures measures = Measure(outcomes, {});
    EXPECT_EQ(measures.completed, 40);
    return measures.cached_tokens;
  };
  EXPECT_EQ(cached("full", 1), 0);
  EXPECT_EQ(cached("full", 1), 0) << "the same prompts once more";
  EXPECT_GT(cached("full", 4), 0) << "its own turns are found";
  EXPECT_EQ(cached("full:cache_salt=mine", 1), 0);
  EXPECT_GT(cached("full:cache_salt=mine", 1), 0) << "a salt that was asked for outlives a run";

  // All requests share one prefix: each arm prefills it once.
  options.turns = 1;
  options.shared_prefixes = 1;
  options.shared_prefix_tokens = 64;
  options.arm_weights = {1, 1};
  const auto target = Connect(server, "full,full:priority=1");
  target->Start();
  const auto outcomes = RunLoad(*Workload::Create(options), {.concurrency = 1}, target.get());
  std::map<int, int> misses;
  for (const Outcome& outcome : outcomes) misses[outcome.arm] += outcome.cached_tokens == 0;
  EXPECT_EQ(misses, (std::map<int, int>{{0, 1}, {1, 1}}));
}

TEST(LoadTest, ASlowReaderIsReadToTheEnd) {
  TestServer server;
  const auto target = Connect(server, "full,full");
  WorkloadOptions options = Options(4);
  options.fault_rates = {0.0, 0.0, 1.0};
  options.slow_read_delay = 0.01;
  const Workload workload = *Workload::Create(options);
  target->Start();
  for (const Outcome& outcome : RunLoad(workload, {.concurrency = 4}, target.get())) {
    EXPECT_EQ(outcome.ending, Ending::kCompleted) << outcome.error;
    EXPECT_EQ(outcome.OutputTokens(), workload.Make(outcome.index).max_tokens);
  }
}

// The server disappears: requests in flight fail, and the rest fails immediately.
TEST(LoadTest, AServerThatDiesIsReported) {
  auto server = std::make_unique<TestServer>();
  server->engine.Pause();
  const auto target = Connect(*server, "full,full");
  WorkloadOptions options = Options(40);
  const Workload workload = *Workload::Create(options);
  target->Start();
  RunOptions run{.concurrency = 10, .tick = 0.01};
  run.on_tick = [&](double now, const std::vector<Outcome>&, int64_t) {
    if (server != nullptr && now > 0.2) {
      server->engine.Lose(absl::InternalError("gone"));
      server->engine.Resume();
      server.reset();
    }
    return true;
  };
  const std::vector<Outcome> outcomes = RunLoad(workload, run, target.get());
  ASSERT_EQ(outcomes.size(), 40u);
  const Measures measures = Measure(outcomes, {});
  EXPECT_EQ(measures.failed, 40);
  EXPECT_FALSE(measures.errors.empty());
}

// The connection between client and server breaks: the streams can be resumed, and the report
// counts them.
TEST(LoadTest, AStreamThatIsLostOnTheWayIsResumable) {
  TestServer server;
  server.engine.Pause();
  auto relay = std::make_unique<Relay>(server.port());
  HydrantTargetOptions options;
  options.addresses = {relay->address()};
  options.mix = *ParseMix("full,full");
  const auto target = HydrantTarget::Create(std::move(options));
  ASSERT_TRUE(target.ok()) << target.status();
  const Workload workload = *Workload::Create(Options(3));
  (*target)->Start();
  RunOptions run{.concurrency = 3, .tick = 0.01};
  run.on_tick = [&](double, const std::vector<Outcome>&, int64_t in_flight) {
    if (in_flight == 3) relay.reset();
    return true;
  };
  const std::vector<Outcome> outcomes = RunLoad(workload, run, target->get());
  server.engine.Resume();
  const Measures measures = Measure(outcomes, {});
  EXPECT_EQ(measures.failed, 3);
  for (const auto& [error, count] : measures.errors)
    EXPECT_THAT(error, testing::EndsWith(" RESUMABLE"));
  EXPECT_TRUE(server.WaitUntilEmpty());
}

// A refusal that names the field proves that the field was sent.
TEST(LoadTest, SamplingIsSentWhereItIsGiven) {
  TestServer server;
  const std::pair<const char*, Sampling> wrong[] = {
      {"sampling.temperature", {.temperature = 101.0}},
      {"sampling.top_p", {.top_p = 1.5}},
      {"sampling.top_k", {.top_k = -2}},
      {"sampling.min_p", {.min_p = 1.5}},
      {"sampling.repetition_penalty", {.repetition_penalty = 11.0}},
      {"sampling.presence_penalty", {.presence_penalty = 2.5}},
      {"sampling.frequency_penalty", {.frequency_penalty = -2.5}}};
  for (const auto& [field, sampling] : wrong) {
    HydrantTargetOptions options;
    options.addresses = {server.address()};
    options.mix = *ParseMix("full,full");
    options.sampling = sampling;
    const auto target = *HydrantTarget::Create(std::move(options));
    target->Start();
    const auto outcomes = RunLoad(*Workload::Create(Options(1)), {.concurrency = 1}, target.get());
    EXPECT_EQ(outcomes[0].status, "INVALID_ARGUMENT") << field;
    EXPECT_THAT(outcomes[0].error, HasSubstr(field));
  }
}

TEST(LoadTest, AnUnknownPolicyAndNoServerAreSaidBeforeAnythingIsSent) {
  TestServer server;
  HydrantTargetOptions options;
  options.addresses = {server.address()};
  options.mix = *ParseMix("h3o:cache_ratio=0.5");
  auto target = HydrantTarget::Create(options);
  ASSERT_FALSE(target.ok());
  EXPECT_THAT(std::string(target.status().message()),
              HasSubstr("mix: 'h3o:cache_ratio=0.5': the server has no policy h3o"));
  options.addresses = {"127.0.0.1:1"};
  options.wait_seconds = 0.1;
  target = HydrantTarget::Create(options);
  ASSERT_FALSE(target.ok());
  EXPECT_EQ(target.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(target.status().message()), HasSubstr("127.0.0.1:1"));
}

TEST(MixTest, ReuseIsNamedAsTheWireNamesIt) {
  EXPECT_EQ((*ParseMix("h2o:reuse=compressed"))[0].cache.reuse(), v1::REUSE_COMPRESSED);
  EXPECT_EQ((*ParseMix("full:reuse=off"))[0].cache.reuse(), v1::REUSE_OFF);
  const MixedArm scheduled =
      (*ParseMix("h2o:on_pressure=evict:priority=-2:tpot_us=90000:max_cache_tokens=9"))[0];
  EXPECT_EQ(scheduled.scheduling.on_pressure(), v1::ON_PRESSURE_EVICT);
  EXPECT_EQ((*ParseMix("full:on_pressure=never"))[0].scheduling.on_pressure(),
            v1::ON_PRESSURE_NEVER);
  EXPECT_EQ(scheduled.scheduling.priority(), -2);
  EXPECT_EQ(scheduled.scheduling.slo().tpot_us(), 90'000u);
  EXPECT_FALSE(scheduled.scheduling.slo().has_ttft_us());
  EXPECT_EQ(scheduled.cache.max_cache_tokens(), 9u);
  EXPECT_TRUE(scheduled.cache.params().empty());
  EXPECT_FALSE((*ParseMix("full"))[0].scheduling.has_slo());
  for (const char* mix : {"full:reuse=often", "full:reuse=unspecified", "full:reuse=1"})
    EXPECT_FALSE(ParseMix(mix).ok()) << mix;
}

TEST(MixTest, FieldsAreFieldsAndTheRestAreParameters) {
  const auto mix =
      ParseMix("full@1,co2:cache_ratio=0.25:sink_tokens=3:alpha=0.01:question_agnostic=true@2.5");
  ASSERT_TRUE(mix.ok()) << mix.status();
  ASSERT_EQ(mix->size(), 2u);
  EXPECT_EQ((*mix)[0].cache.cache_policy(), "full");
  const MixedArm& arm = (*mix)[1];
  EXPECT_EQ(arm.name, "co2:cache_ratio=0.25:sink_tokens=3:alpha=0.01:question_agnostic=true");
  EXPECT_EQ(arm.weight, 2.5);
  EXPECT_EQ(arm.cache.cache_ratio(), 0.25);
  EXPECT_EQ(arm.cache.sink_tokens(), 3u);
  EXPECT_TRUE(arm.cache.question_agnostic());
  EXPECT_EQ(arm.cache.params().at("alpha"), "0.01");
  const std::pair<const char*, const char*> bad[] = {
      {"", "mix: ''"},
      {"full,", "mix: ''"},
      {":a=1", "begins with the name"},
      {"full@", "weight"},
      {"full@0", "weight"},
      {"full@x", "weight"},
      {"h2o:cache_ratio", "name=value"},
      {"h2o:cache_ratio=x", "cache_ratio: 'x' is no value for it"},
      {"h2o:sink_tokens=-1", "sink_tokens: '-1' is no value for it"}};
  for (const auto& [text, error] : bad)
    EXPECT_THAT(std::string(ParseMix(text).status().message()), HasSubstr(error)) << text;
}

}  // namespace
}  // namespace hydrant::load
