// Tests against an HTTP server that behaves like OpenAI's API, with one chunk per token.
#include "tools/load/targets/openai_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tools/load/run/measures.h"
#include "tools/load/run/probe.h"
#include "tools/load/run/runner.h"
#include "tools/load/run/workload.h"
#include "tools/load/targets/metrics_scraper.h"

namespace hydrant::load {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kText[] = " this is the end of the line and there is no more to see";

class FakeOpenAi {
 public:
  bool tells_usage = true;
  std::string cached = "{\"cached_tokens\": 33}";
  int fail_with = 0;  // an HTTP status
  bool break_off = false;
  std::atomic<int> pages{0};  // of /metrics

  FakeOpenAi() {
    server_.new_task_queue = [] { return new httplib::ThreadPool(64); };
    server_.Get("/v1/models", [](const auto&, httplib::Response& response) {
      response.set_content(R"({"object": "list", "data": [{"id": "little"}]})", "application/json");
    });
    server_.Get("/metrics", [this](const auto&, httplib::Response& response) {
      const int n = ++pages;
      response.set_content(
          "# TYPE vllm:generation_tokens_total counter\n"
          "vllm:generation_tokens_total " +
              std::to_string(10 * n) +
              "\nvllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.25\n",
          "text/plain");
    });
    server_.Post("/v1/completions", [this](const auto& request, httplib::Response& response) {
      Answer(request.body, &response);
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
  }
  ~FakeOpenAi() {
    server_.stop();
    thread_.join();
  }

  std::string address() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Json> bodies() {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }

 private:
  void Answer(const std::string& body, httplib::Response* response) {
    const Json asked = Json::parse(body);
    {
      const std::lock_guard lock(mutex_);
      bodies_.push_back(asked);
    }
    if (fail_with != 0 || asked["temperature"] < 0) {
      response->status = fail_with != 0 ? fail_with : 400;
      response->set_content(R"({"error": {"message": "temperature: -1 is outside [0, 2]"}})",
                            "application/json");
      return;
    }
    const int tokens = asked["max_tokens"];
    auto sent = std::make_shared<int>(0);
    response->set_chunked_content_provider(
        "text/event-stream", [this, tokens, sent](size_t, httplib::DataSink& sink) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          if (*sent < tokens) {
            const std::string event =
                R"(data: {"choices": [{"index": 0, "text": " word", "finish_reason": null}]})"
                "\n\n";
            if (break_off && *sent == 2) return false;
            ++*sent;
            return sink.write(event.data(), event.size());
          }
          // One token has no text.
          std::string end =
              "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 77, "
              "\"prompt_tokens_details\": " +
              cached + ", \"completion_tokens\": " + std::to_string(tokens + 1) + "}}\n\n";
          if (!tells_usage) end.clear();
          end += "data: [DONE]\n\n";
          sink.write(end.data(), end.size());
          sink.done();
          return true;
        });
  }

  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<Json> bodies_;  // guarded by mutex_
};

std::unique_ptr<OpenAiTarget> Connect(const FakeOpenAi& server, bool prompt_ids = false) {
  OpenAiTargetOptions options;
  options.addresses = {server.address()};
  options.tokenizer = std::string(HYDRANT_TEST_TOKENIZER);
  options.prompt_ids = prompt_ids;
  auto target = OpenAiTarget::Create(std::move(options));
  EXPECT_TRUE(target.ok()) << target.status();
  return *std::move(target);
}

Workload MakeWorkload(ServerTarget* target, int64_t requests, int64_t output,
                      std::array<double, kNumFaults> faults = {}) {
  WorkloadOptions options;
  options.num_requests = requests;
  options.input_tokens = 9;
  options.output_tokens = output;
  options.text = *target->Tokenize(kText);
  options.fault_rates = faults;
  options.fault_deadline = 0.02;
  options.oversized_tokens = 100;
  return *Workload::Create(options);
}

TEST(OpenAiTargetTest, ChunksAreTokensAndUsageHasTheRest) {
  FakeOpenAi server;
  const auto target = Connect(server);
  EXPECT_EQ(target->info().model, "little");
  const Workload workload = MakeWorkload(target.get(), 20, 6);
  target->Start();
  const auto outcomes = RunLoad(workload, {.concurrency = 5}, target.get());
  ASSERT_EQ(outcomes.size(), 20u);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.ending, Ending::kCompleted) << outcome.error;
    EXPECT_EQ(outcome.messages.size(), 6u);
    EXPECT_EQ(outcome.OutputTokens(), 7);
    EXPECT_EQ(outcome.input_tokens, 77) << "as the server counts";
    EXPECT_GT(outcome.TimeToFirstToken(), 0.0);
    EXPECT_GT(outcome.bytes_received, 6u * 60u);
  }
  EXPECT_EQ(Measure(outcomes, {}).queue.count, 0) << "of which it says nothing";
  EXPECT_EQ(outcomes[0].cached_tokens, 33);
  const auto prompts = server.bodies();
  ASSERT_EQ(prompts.size(), 20u);
  EXPECT_TRUE(prompts[0]["stream"]);
  EXPECT_EQ(prompts[0]["max_tokens"], 6);
  // The prompt is the text of its tokens.
  const std::string text = prompts[0]["prompt"];
  EXPECT_THAT(std::string(kText) + kText, HasSubstr(text));
}

TEST(OpenAiTargetTest, NonNumbersAreNotCounted) {
  for (const char* cached :
       {"null", "{}", "{\"cached_tokens\": null}", "[3]", "{\"cached_tokens\": \"x\"}"}) {
    FakeOpenAi server;
    server.cached = cached;
    const auto target = Connect(server, /*prompt_ids=*/true);
    const Workload workload = MakeWorkload(target.get(), 1, 4);
    const auto outcomes = RunLoad(workload, {.concurrency = 1}, target.get());
    EXPECT_EQ(outcomes[0].status, "OK") << cached;
    EXPECT_EQ(outcomes[0].cached_tokens, -1) << cached;
  }
}

TEST(OpenAiTargetTest, WithoutUsageChunksCountAndPromptsMayBeIds) {
  FakeOpenAi server;
  server.tells_usage = false;
  const auto target = Connect(server, /*prompt_ids=*/true);
  const Workload workload = MakeWorkload(target.get(), 3, 4);
  const auto outcomes = RunLoad(workload, {.concurrency = 1}, target.get());
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.OutputTokens(), 4);
    EXPECT_EQ(outcome.input_tokens, 9);
  }
  EXPECT_EQ(server.bodies()[0]["prompt"].get<std::vector<uint32_t>>(), workload.Make(0).prompt);
}

TEST(OpenAiTargetTest, SamplingIsSentWhereItIsGiven) {
  FakeOpenAi server;
  OpenAiTargetOptions options;
  options.addresses = {server.address()};
  options.tokenizer = std::string(HYDRANT_TEST_TOKENIZER);
  options.sampling = {.temperature = 0.5, .top_p = 0.75, .top_k = 40, .frequency_penalty = -0.25};
  const auto target = *OpenAiTarget::Create(std::move(options));
  RunLoad(MakeWorkload(target.get(), 1, 2), {.concurrency = 1}, target.get());
  const Json asked = server.bodies()[0];
  EXPECT_EQ(asked["temperature"], 0.5);
  EXPECT_EQ(asked["top_p"], 0.75);
  EXPECT_EQ(asked["top_k"], 40);
  EXPECT_EQ(asked["frequency_penalty"], -0.25);
  for (const char* name : {"min_p", "repetition_penalty", "presence_penalty"})
    EXPECT_FALSE(asked.contains(name)) << name;
}

TEST(OpenAiTargetTest, FaultsAreInjected) {
  FakeOpenAi server;
  const auto target = Connect(server);
  const Workload workload = MakeWorkload(target.get(), 120, 20, {0.2, 0.15, 0.1, 0.0, 0.2, 0.2});
  target->Start();
  const auto outcomes = RunLoad(workload, {.concurrency = 20}, target.get());
  std::map<Fault, int> faults;
  for (const Outcome& outcome : outcomes) {
    const PlannedRequest request = workload.Make(outcome.index);
    ++faults[request.fault];
    const bool well = request.fault == Fault::kNone || request.fault == Fault::kSlowReader;
    const bool may_be_late = request.fault == Fault::kCancel || request.fault == Fault::kDisconnect;
    if (may_be_late && outcome.status == "OK") continue;  // its last token was there already
    EXPECT_EQ(outcome.ending, well ? Ending::kCompleted : Ending::kFault)
        << static_cast<int>(request.fault) << outcome.status << outcome.error;
    if (request.fault == Fault::kMalformed) {
      EXPECT_EQ(outcome.reason, "HTTP 400");
      EXPECT_THAT(outcome.error, HasSubstr("temperature: -1"));
    }
  }
  EXPECT_EQ(faults.size(), 6u);
}

TEST(OpenAiTargetTest, ASweepProbesIt) {
  FakeOpenAi server;
  const auto target = Connect(server);
  const Workload workload = MakeWorkload(target.get(), 1'000'000, 5);
  target->Start();
  ProbeOptions options;
  options.objectives = *Objectives::Parse("ttft:30000");
  options.warm_up = 0.1;
  options.seconds = 1.0;
  options.least_requests = 1;
  const Probe probe = ProbeRate(workload, 30.0, options, target.get());
  EXPECT_TRUE(probe.complete);
  EXPECT_TRUE(probe.met);
  EXPECT_GT(probe.requests, 5);
  EXPECT_EQ(probe.good, probe.requests);
  EXPECT_GT(probe.output_tokens_per_second, 0.0);
}

TEST(OpenAiTargetTest, RefusalsAndBrokenStreamsAreReported) {
  FakeOpenAi server;
  const auto target = Connect(server);
  const Workload workload = MakeWorkload(target.get(), 1, 5);
  server.break_off = true;
  Outcome outcome = RunLoad(workload, {.concurrency = 1}, target.get())[0];
  EXPECT_EQ(outcome.ending, Ending::kFailed);
  EXPECT_EQ(outcome.status, "UNAVAILABLE");
  EXPECT_EQ(outcome.OutputTokens(), 2);
  server.fail_with = 429;
  outcome = RunLoad(workload, {.concurrency = 1}, target.get())[0];
  EXPECT_EQ(outcome.ending, Ending::kFailed);
  EXPECT_EQ(outcome.status, "RESOURCE_EXHAUSTED");
  EXPECT_EQ(outcome.reason, "HTTP 429");
}

TEST(OpenAiTargetTest, MissingOptionsAreReportedBeforeSending) {
  OpenAiTargetOptions options;
  options.addresses = {"http://127.0.0.1:1"};
  options.wait_seconds = 0.0;
  auto target = OpenAiTarget::Create(options);
  EXPECT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(target.status().message()), HasSubstr("tokenizer: "));
  options.tokenizer = HYDRANT_TEST_TOKENIZER;
  target = OpenAiTarget::Create(options);
  EXPECT_EQ(target.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(target.status().message()), HasSubstr("http://127.0.0.1:1/v1/models"));
}

TEST(MetricsScraperTest, CountersCountFromTheFirstScrape) {
  FakeOpenAi server;
  MetricsScraper scraper({server.address() + "/metrics", "http://127.0.0.1:1/metrics"}, 0.05);
  scraper.Start();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::vector<ServerSeries> series = scraper.Stop();
  ASSERT_EQ(series.size(), 2u);
  EXPECT_EQ(static_cast<int>(series[0].samples.size()), server.pages.load());
  EXPECT_GE(series[0].samples.size(), 2u);
  EXPECT_EQ(series[0].counters.at("vllm:generation_tokens_total"),
            10 * (static_cast<double>(series[0].samples.size()) - 1));
  EXPECT_EQ(series[0].counters.size(), 1u) << "gauges are none";
  EXPECT_EQ(series[0].samples[0].running, 3);
  EXPECT_EQ(series[0].samples[0].cache_usage, 0.25);
  EXPECT_EQ(series[0].failed, 0);
  EXPECT_TRUE(series[1].samples.empty());
  EXPECT_GE(series[1].failed, 2);
  EXPECT_FALSE(series[1].error.empty());
}

}  // namespace
}  // namespace hydrant::load
