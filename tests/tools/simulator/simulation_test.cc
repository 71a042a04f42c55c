#include "tools/simulator/simulation.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/load/run/arrivals.h"
#include "tools/load/run/trace.h"
#include "tools/simulator/balancer.h"
#include "tools/simulator/report.h"
#include "tools/simulator/trace_copies.h"

namespace hydrant::sim {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 11;

// A small model with simple step times.
SimulationOptions SmallOptions(const std::string& mix = "full") {
  ModelShape shape;
  shape.num_layers = 2;
  shape.num_heads = shape.num_kv_heads = 2;
  shape.max_context = 4096;
  shape.vocab_size = 1000;
  EngineOptions engine;
  engine.kv_cache_memory_bytes = 64 << 20;
  engine.prefix_cache_memory_bytes = 8 << 20;
  SimulationOptions options;
  options.replica.limits = LimitsOf(shape, engine, /*fold_heads=*/false).value();
  options.replica.cost = {
      .step_us = 1000, .row_us = 100, .page_us = 1, .prompt_token_us = 10, .prompt_pair_us = 0.01};
  options.mix = ParseMix(mix).value();
  options.seed = kSeed;
  return options;
}

load::WorkloadOptions SmallLoad(const SimulationOptions& options, int64_t requests, int64_t input,
                                int64_t output) {
  load::WorkloadOptions load;
  load.seed = kSeed;
  load.num_requests = requests;
  load.input_tokens = input;
  load.output_tokens = output;
  load.vocab_size = options.replica.limits.vocab_size;
  load.arm_weights.clear();
  for (const Arm& arm : options.mix) load.arm_weights.push_back(arm.weight);
  return load;
}

SimulationResult RunAtRate(const SimulationOptions& options, const load::WorkloadOptions& load,
                           double rate) {
  std::cout << "seed " << kSeed << "\n";
  load::Arrivals arrivals(load::RateProfile::Constant(rate), 1.0, load.seed);
  const load::Workload workload = load::Workload::Create(load).value();
  return Simulate(options, workload, [&](int64_t) { return arrivals.Next(); }).value();
}

SimulationResult Replay(const SimulationOptions& options, std::vector<load::TracedRequest> trace) {
  load::WorkloadOptions load = SmallLoad(options, 1'000'000, 1, 1);
  load.trace = std::move(trace);
  const load::Workload workload = load::Workload::Create(load).value();
  return Simulate(options, workload, [&](int64_t i) { return load.trace[i].at; }).value();
}

// One step for the prefill; then one per token, with the pages of all earlier tokens.
TEST(SimulationTest, OneRequestTakesTheSumOfItsSteps) {
  const SimulationOptions options = SmallOptions();
  const SimulationResult result =
      Replay(options, {{.at = 0, .input_tokens = 100, .output_tokens = 40}});
  ASSERT_EQ(result.requests.size(), 1u);
  const SimulatedRequest& request = result.requests[0];
  EXPECT_TRUE(request.completed);
  EXPECT_EQ(request.output_tokens, 40);
  double us = 1000 + 100 * 10 + 100 * 100 * 0.5 * 0.01;
  EXPECT_NEAR(static_cast<double>(request.first_token), us, 1);
  for (int seen = 101; seen < 140; ++seen) us += 1000 + 100 + 2 * 2 * std::ceil(seen / 16.0);
  EXPECT_NEAR(static_cast<double>(request.last_token), us, 40);
  EXPECT_EQ(result.totals.steps, 40u);
  EXPECT_EQ(result.end, request.last_token);
  EXPECT_DOUBLE_EQ(result.busy, 1.0);
  const double most = 4 * std::ceil(139 / 16.0);
  EXPECT_DOUBLE_EQ(result.peak_page_use, most / static_cast<double>(result.totals.pages_total));
}

// With one sequence at a time, each a step of one length, it is an M/D/1 queue: by Pollaczek and
// Khinchine the mean wait is rho S / (2 (1 - rho)).
TEST(SimulationTest, OneAtATimeWaitsAsPollaczekAndKhinchineSay) {
  SimulationOptions options = SmallOptions();
  options.replica.limits.engine.max_num_seqs = 1;
  const double service = (1000 + 32 * 10 + 32 * 32 * 0.5 * 0.01) * 1e-6;
  for (const double rho : {0.3, 0.7}) {
    const SimulationResult result =
        RunAtRate(options, SmallLoad(options, 40'000, 32, 1), rho / service);
    const Figures figures = MakeFigures(result, {});
    ASSERT_EQ(figures.completed, 40'000);
    const double waits = rho * service / (2 * (1 - rho));
    EXPECT_NEAR(figures.ttft.mean / 1e3 - service, waits, 0.06 * waits) << rho;
    EXPECT_NEAR(figures.queue.mean / 1e3, waits, 0.06 * waits) << rho;
    EXPECT_NEAR(result.busy, rho, 0.02);
  }
}

TEST(SimulationTest, OneSeedIsOneResult) {
  SimulationOptions options = SmallOptions("full@1,ada-snapkv:cache_ratio=0.3@1,auto@1");
  options.replica.cost.noise = 0.2;
  options.num_replicas = 3;
  options.balancer = "random";
  load::WorkloadOptions load = SmallLoad(options, 600, 200, 60);
  load.range_ratio = 0.9;
  const std::string once = JsonOf(RunAtRate(options, load, 60), {});
  EXPECT_EQ(JsonOf(RunAtRate(options, load, 60), {}), once);
  options.seed = kSeed + 1;
  EXPECT_NE(JsonOf(RunAtRate(options, load, 60), {}), once);
}

// While both tenants have a backlog, each gets half, however many requests one of them sends.
TEST(SimulationTest, TenTimesTheRequestsAreNoMoreThanAShare) {
  SimulationOptions options = SmallOptions("full:tenant=a@10,full:tenant=b@1");
  options.replica.scheduler.max_num_queued_reqs = 100'000;
  options.replica.scheduler.max_num_queued_tokens = 100'000'000;
  const SimulationResult result = RunAtRate(options, SmallLoad(options, 20'000, 64, 16), 20'000);
  EXPECT_EQ(MakeFigures(result, {}).completed, 20'000);
  const auto a = static_cast<double>(result.contended_tokens.at("a"));
  const auto b = static_cast<double>(result.contended_tokens.at("b"));
  EXPECT_GT(b, 50'000);
  EXPECT_NEAR(a / (a + b), 0.5, 0.01);
}

TEST(SimulationTest, AShareIsAsTheWeightSays) {
  SimulationOptions options = SmallOptions("full:tenant=a@1,full:tenant=b@1");
  options.replica.scheduler.max_num_queued_reqs = 100'000;
  options.replica.scheduler.max_num_queued_tokens = 100'000'000;
  options.replica.scheduler.tenant_weights = {{"a", 3}};
  const SimulationResult result = RunAtRate(options, SmallLoad(options, 20'000, 64, 16), 20'000);
  const auto a = static_cast<double>(result.contended_tokens.at("a"));
  const auto b = static_cast<double>(result.contended_tokens.at("b"));
  EXPECT_GT(b, 50'000);
  EXPECT_NEAR(a / (a + b), 0.75, 0.01);
}

// A tenant within its share is hardly affected by another tenant's overload.
TEST(SimulationTest, SmallRequestsAreServedAtOnce) {
  const SimulationOptions options = SmallOptions("full:tenant=a@10,full:tenant=b@1");
  const load::WorkloadOptions load = SmallLoad(options, 20'000, 64, 16);
  const SimulationResult result = RunAtRate(options, load, 1500);
  const Figures a = MakeFigures(result, {}, 0), b = MakeFigures(result, {}, 1);
  EXPECT_GT(a.queue.p50, 10 * b.queue.max);
}

// A priority level equals one minute: a request that has waited longer precedes new ones.
TEST(SimulationTest, NoRequestStarvesBehindPriorities) {
  SimulationOptions options = SmallOptions("full@20,full:priority=1@1");
  options.replica.scheduler.max_num_queued_reqs = 1'000'000;
  options.replica.scheduler.max_num_queued_tokens = 100'000'000;
  options.replica.limits.engine.max_num_seqs = 1;
  options.replica.cost.step_us = 20'000;
  const SimulationResult result = RunAtRate(options, SmallLoad(options, 20'000, 16, 1), 60);
  EXPECT_EQ(MakeFigures(result, {}).completed, 20'000);
  TimeUs first_after = std::numeric_limits<TimeUs>::max();  // of class 0, of requests yet to arrive
  size_t next = result.requests.size(), num_patient = 0;
  for (size_t i = result.requests.size(); i-- > 0;) {
    const SimulatedRequest& request = result.requests[i];
    if (request.arm != 1) continue;
    while (next > 0 && result.requests[next - 1].arrived > request.arrived + 60'000'000) {
      --next;
      if (result.requests[next].arm == 0)
        first_after = std::min(first_after, result.requests[next].first_token);
    }
    EXPECT_LT(request.first_token, first_after);
    num_patient += request.queue > 60'000'000 ? 1 : 0;
  }
  EXPECT_GT(num_patient, 100u);
}

TEST(SimulationTest, OneHeadStandsForAllWhereTheyAreAlike) {
  ModelShape shape;
  EngineOptions engine;
  engine.kv_cache_memory_bytes = 90 * 4352 * 300;
  SimulationOptions options = SmallOptions();
  load::WorkloadOptions load = SmallLoad(options, 400, 300, 80);
  load.range_ratio = 0.8;
  std::vector<double> ttft, tpot;
  for (const bool fold : {false, true}) {
    options.replica.limits = LimitsOf(shape, engine, fold).value();
    const SimulationResult result = RunAtRate(options, load, 20);
    EXPECT_GT(result.peak_page_use, 0.5);
    const Figures figures = MakeFigures(result, {});
    ttft.push_back(figures.ttft.mean);
    tpot.push_back(figures.tpot.mean);
  }
  EXPECT_NEAR(ttft[1], ttft[0], 0.05 * ttft[0]);
  EXPECT_NEAR(tpot[1], tpot[0], 0.05 * tpot[0]);
}

TEST(SimulationTest, BalancersByLoadAndByPrefix) {
  std::map<std::string, Figures> figures;
  std::map<std::string, uint64_t> hits;
  for (const std::string_view name : kBalancerNames) {
    SimulationOptions options = SmallOptions();
    options.num_replicas = 8;
    options.balancer = name;
    load::WorkloadOptions load = SmallLoad(options, 4000, 100, 20);
    load.shared_prefixes = 40;
    load.shared_prefix_tokens = 1024;
    const SimulationResult result = RunAtRate(options, load, 350);
    figures[options.balancer] = MakeFigures(result, {});
    hits[options.balancer] = result.totals.prefix_cache.hit_tokens;
    EXPECT_EQ(figures[options.balancer].completed, 4000);
  }
  EXPECT_LT(figures["least-loaded"].ttft.p99, figures["random"].ttft.p99);
  EXPECT_LT(figures["prefix-aware"].ttft.mean, figures["least-loaded"].ttft.mean);
  EXPECT_GT(hits["prefix-aware"], hits["random"] * 11 / 10);
}

TEST(SimulationTest, OverlongRequestsAreRefusedOrClipped) {
  SimulationOptions options = SmallOptions();
  const std::vector<load::TracedRequest> trace = {
      {.at = 0, .input_tokens = 5000, .output_tokens = 9},
      {.at = 1, .input_tokens = 10, .output_tokens = 9}};
  const SimulationResult refused = Replay(options, trace);
  EXPECT_EQ(refused.errors.at("INVALID").count, 1);
  EXPECT_THAT(refused.errors.at("INVALID").example, HasSubstr("max_model_len"));
  options.clip_lengths = true;
  const SimulationResult clipped = Replay(options, trace);
  EXPECT_EQ(clipped.clipped, 1);
  EXPECT_EQ(MakeFigures(clipped, {}).completed, 2);
  EXPECT_EQ(clipped.requests[0].input_tokens, 4096 - 9);
}

TEST(SimulationTest, AFullQueueRefuses) {
  SimulationOptions options = SmallOptions();
  options.replica.scheduler.max_num_queued_reqs = 5;
  options.replica.limits.engine.max_num_seqs = 1;
  const SimulationResult result = RunAtRate(options, SmallLoad(options, 200, 64, 16), 1e6);
  EXPECT_GT(result.errors.at("QUEUE_FULL").count, 150);
  const Figures figures = MakeFigures(result, {});
  EXPECT_EQ(figures.completed + result.errors.at("QUEUE_FULL").count, 200);
}

TEST(SimulationTest, ReplaysAzure) {
  const SimulationOptions options = SmallOptions();
  const SimulationResult result =
      Replay(options, load::ReadTrace("tests/data/simulator/azure.csv").value());
  ASSERT_EQ(result.requests.size(), 3u);
  EXPECT_EQ(result.requests[1].arrived, 2'000'000);
  EXPECT_EQ(result.requests[2].input_tokens, 2000);
  EXPECT_EQ(result.requests[2].output_tokens, 4);
  EXPECT_EQ(MakeFigures(result, {}).completed, 3);
}

// Equal hashes are equal prompts: the second request finds the first one's prefix in the cache.
TEST(SimulationTest, ReplaysMooncakesSharedPrefixes) {
  const SimulationOptions options = SmallOptions();
  const SimulationResult result =
      Replay(options, load::ReadTrace("tests/data/simulator/mooncake.jsonl").value());
  ASSERT_EQ(result.requests.size(), 3u);
  EXPECT_EQ(result.requests[0].cached_tokens, 0);
  EXPECT_EQ(result.requests[1].cached_tokens, 2 * load::kTokensPerHash);
  EXPECT_EQ(result.requests[2].cached_tokens, 0);
}

// The first requests of the published traces, if available.
TEST(SimulationTest, ReplaysThePublishedTraces) {
  const char* folder = std::getenv("HYDRANT_DATA_DIR");
  const std::filesystem::path traces =
      std::filesystem::path(folder != nullptr ? folder : "../shared/data") / "traces";
  if (!std::filesystem::exists(traces))
    GTEST_SKIP() << "no " << traces << " (set HYDRANT_DATA_DIR)";
  SimulationOptions options = SmallOptions();
  options.clip_lengths = true;
  for (const char* name : {"AzureLLMInferenceTrace_conv.csv", "conversation_trace.jsonl"}) {
    std::vector<load::TracedRequest> trace = load::ReadTrace(traces / name).value();
    trace.resize(500);
    const SimulationResult result = Replay(options, trace);
    EXPECT_EQ(MakeFigures(result, {}).completed, 500) << name;
  }
}

TEST(TraceCopiesTest, EachCopyIsTheWholeTraceFromSomewhere) {
  const std::vector<load::TracedRequest> trace = {{.at = 0, .input_tokens = 1, .hashes = {0}},
                                                  {.at = 10, .input_tokens = 2, .hashes = {0, 1}},
                                                  {.at = 20, .input_tokens = 3, .hashes = {2}}};
  const auto all = CopiesOf(trace, 50, 1'000'000, kSeed);
  ASSERT_EQ(all.size(), 150u);
  std::map<int64_t, int> of_copy;  // requests
  std::map<int64_t, int> of_length;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_GE(all[i].at, i == 0 ? 0 : all[i - 1].at);
    EXPECT_LT(all[i].at, 20 * 4 / 3.0);
    ++of_copy[all[i].hashes[0] / 3];
    ++of_length[all[i].input_tokens];
  }
  EXPECT_EQ(of_copy.size(), 50u);
  for (const auto& [copy, requests] : of_copy) EXPECT_EQ(requests, 3) << copy;
  EXPECT_EQ(of_length, (std::map<int64_t, int>{{1, 50}, {2, 50}, {3, 50}}));
  // The first of them, equal to a prefix of all copies.
  const auto first = CopiesOf(trace, 50, 40, kSeed);
  ASSERT_EQ(first.size(), 40u);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].at, all[i].at);
}

TEST(TraceCopiesTest, ATraceThatBeginsSlowlyIsPlayedAsFarAsWanted) {
  std::vector<load::TracedRequest> trace(100);
  for (int i = 0; i < 100; ++i) trace[i].at = i < 10 ? 10.0 * i : 90.0 + 0.1 * i;
  EXPECT_EQ(CopiesOf({{.at = 0}}, 2, 2, kSeed).size(), 2u);
  for (const int copies : {1, 3}) {
    for (const int64_t most : {1, 20, 99, 100}) {
      const auto first = CopiesOf(trace, copies, most, kSeed);
      const auto all = CopiesOf(trace, copies, 1'000'000, kSeed);
      ASSERT_EQ(static_cast<int64_t>(first.size()), most) << copies;
      for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].at, all[i].at);
    }
  }
}

TEST(SimulationTest, WrongOptionsAreNamed) {
  const load::Workload workload =
      load::Workload::Create(SmallLoad(SmallOptions(), 2, 10, 2)).value();
  const auto error_of = [&](const SimulationOptions& options, double due) {
    const auto result = Simulate(options, workload, [due](int64_t) { return due; });
    return std::string(result.status().message());
  };
  SimulationOptions options = SmallOptions();
  EXPECT_THAT(error_of(options, 2e9), HasSubstr("request-rate: request 0 would come after 2"));
  options.num_replicas = 0;
  EXPECT_THAT(error_of(options, 0), HasSubstr("replicas: 0 is outside [1, 100000]"));
  options.num_replicas = 2;
  options.balancer = "best";
  EXPECT_THAT(error_of(options, 0), HasSubstr("balancer: 'best' is none of random, least-loaded"));
  options.balancer = "random";
  options.replica.scheduler.watermark = 2;
  EXPECT_THAT(error_of(options, 0), HasSubstr("watermark: 2 is outside [0, 0.5]"));
}

TEST(ModelShapeTest, WrongShapesAreNamed) {
  EngineOptions engine;
  engine.kv_cache_memory_bytes = 1 << 20;
  const auto error_of = [&](const ModelShape& shape) {
    return std::string(LimitsOf(shape, engine, false).status().message());
  };
  EXPECT_THAT(error_of({.num_layers = 0}), HasSubstr("num-layers: 0 is outside [1, 4096]"));
  EXPECT_THAT(error_of({.num_heads = 7}), HasSubstr("num-heads: 7 is no multiple"));
  EXPECT_THAT(error_of({.max_context = 1}),
              HasSubstr("max-model-len: 1 is outside [2, 1073741824]"));
  engine.kv_cache_memory_bytes = 1000;
  EXPECT_THAT(error_of({}), HasSubstr("kv_cache_memory_bytes: the pool would hold 0 pages"));
}

TEST(MixTest, ReadsALoadsMix) {
  const auto mix =
      ParseMix("full@10,h2o:cache_ratio=0.2:tenant=b:priority=-3:ttft_us=5:reuse=off:x=1");
  ASSERT_TRUE(mix.ok()) << mix.status();
  ASSERT_EQ(mix->size(), 2u);
  EXPECT_EQ((*mix)[0].weight, 10);
  const Request& request = (*mix)[1].request;
  EXPECT_EQ(request.cache.policy, "h2o");
  EXPECT_EQ(request.cache.cache_ratio, 0.2);
  EXPECT_EQ(request.cache.params, (std::map<std::string, std::string>{{"x", "1"}}));
  EXPECT_EQ(request.tenant, "b");
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.slo.ttft_us, 5);
  EXPECT_FALSE(request.prefix_caching);
  EXPECT_EQ(request.on_pressure, OnPressure::kPreempt);
  EXPECT_EQ((*ParseMix("full:on_pressure=never"))[0].request.on_pressure, OnPressure::kNever);
  EXPECT_EQ((*ParseMix("h2o:on_pressure=evict"))[0].request.on_pressure, OnPressure::kEvict);
}

TEST(MixTest, NamesTheArmThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "mix: '': it begins with the name of a policy"},
      {"full@", "mix: 'full@': what follows @ is its weight"},
      {"full@-1", "what follows @ is its weight"},
      {"full:a", "settings are written name=value"},
      {"full:priority=x", "priority: 'x' is no value for it"},
      {"full:on_pressure=always", "on_pressure: 'always' is no value for it"},
      {"full:reuse=maybe", "reuse: 'maybe' is no value for it"}};
  for (const auto& [text, error] : cases)
    EXPECT_THAT(std::string(ParseMix(text).status().message()), HasSubstr(error)) << text;
}

TEST(TimelineTest, WindowsGrowAndLoseNothing) {
  Timeline timeline;
  for (TimeUs at = 0; at < 100'000'000; at += 7'000) timeline.Add(at, {.arrived = 1});
  int64_t arrived = 0;
  for (const Timeline::Window& window : timeline.windows()) arrived += window.arrived;
  EXPECT_EQ(arrived, 100'000'000 / 7'000 + 1);
  EXPECT_LE(timeline.windows().size(), 400u);
  EXPECT_GE(timeline.windows().size(), 200u);
}

TEST(ReportTest, JsonHasTheNamesOfAMeasuredRun) {
  const SimulationOptions options = SmallOptions();
  const SimulationResult result = RunAtRate(options, SmallLoad(options, 50, 64, 8), 10);
  const ReportOptions report{.objectives = load::Objectives::Parse("ttft:1000").value(),
                             .arms = {"full"}};
  const nlohmann::json json = nlohmann::json::parse(JsonOf(result, report));
  EXPECT_EQ(json["completed"], 50);
  EXPECT_EQ(json["total_output_tokens"], 400);
  EXPECT_EQ(json["request_goodput"], json["request_throughput"]);
  EXPECT_NEAR(json["duration"].get<double>(), static_cast<double>(result.end) * 1e-6, 1e-9);
  EXPECT_GT(json["p99_ttft_ms"].get<double>(), 1.0);
  EXPECT_EQ(json["arms"][0]["name"], "full");
  const std::string table = TableOf(result, report);
  EXPECT_THAT(table, HasSubstr("50 requests, 50 completed"));
  EXPECT_THAT(table, HasSubstr("good: 50 (100.0 %)"));
}

}  // namespace
}  // namespace hydrant::sim
