// hydrant-load's streams against a whole server over a fake engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "load/hydrant_target.h"
#include "load/measures.h"
#include "load/mix.h"
#include "load/runner.h"
#include "load/workload.h"
#include "tests/server/test_server.h"

namespace hydrant {
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

// A thousand requests, a third of which misbehave: every one ends as it should, usage and messages
// agree, and no page stays taken.
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

// The server goes away in the middle: what was in flight failed, and the rest fails at once.
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
}  // namespace hydrant
