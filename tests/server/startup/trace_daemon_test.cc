// hydrantd with a collector: a request's trace, the log's record of it, and that an absent
// collector does no harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "server/observe/trace_context.h"
#include "tests/server/daemon_process.h"
#include "tests/server/environment.h"
#include "tests/server/fake_collector.h"
#include "tests/server/http_get.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::HasSubstr;
using Span = FakeCollector::Span;

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";

v1::GenerateRequest Tokens(uint32_t count, uint32_t max_tokens) {
  v1::GenerateRequest request;
  for (uint32_t id = 0; id < count; ++id) request.mutable_token_ids()->add_ids(5 + id % 50);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

std::vector<nlohmann::json> RequestsInTheLog(const std::string& log) {
  std::vector<nlohmann::json> requests;
  std::istringstream lines(log);
  for (std::string text; std::getline(lines, text);) {
    nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(line.is_object()) << text;
    if (line.is_object() && line.contains("request_id")) requests.push_back(std::move(line));
  }
  return requests;
}

TEST(TracedDaemon, SendsTheTraceThatItsLogNames) {
  FakeCollector collector;
  Daemon daemon({"--otlp-traces-endpoint", collector.address(), "--otlp-service-name", "ours",
                 "--log-format", "json", "--metrics-listen", "127.0.0.1:0"});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  grpc::ClientContext context;
  context.AddMetadata("traceparent", kTraceparent);
  ASSERT_TRUE(RunToEnd(daemon.stub(), Tokens(3, 7), &context).status.ok());
  const std::vector<Span> spans = collector.WaitForSpans(4);
  const std::string metrics = daemon.MetricsAddress();
  EXPECT_TRUE(WaitFor([&] {
    const std::string scrape = HttpGet(metrics.substr(0, metrics.find('"')), "/metrics").body;
    return scrape.find("\nhydrant_trace_spans_exported_total 4\n") != scrape.npos &&
           scrape.find("\nhydrant_trace_spans_dropped_total 0\n") != scrape.npos;
  }));
  daemon.process().Signal(SIGTERM);
  ASSERT_EQ(daemon.process().Wait(), 0);
  ASSERT_EQ(spans.size(), 4u);
  std::map<std::string, Span> named;
  for (const Span& span : spans) named[span.name()] = span;
  const Span& call = named["hydrant.v1.Hydrant/Generate"];
  EXPECT_EQ(ToHex(call.trace_id()), kTraceId);
  EXPECT_EQ(ToHex(call.parent_span_id()), "00f067aa0ba902b7");
  uint64_t begin = call.start_time_unix_nano();
  for (const char* phase : {"queue", "prefill", "decode"}) {
    EXPECT_EQ(ToHex(named[phase].trace_id()), kTraceId) << phase;
    EXPECT_EQ(named[phase].parent_span_id(), call.span_id()) << phase;
    EXPECT_GE(named[phase].start_time_unix_nano(), begin) << phase;
    begin = named[phase].end_time_unix_nano();
  }
  EXPECT_LE(begin, call.end_time_unix_nano());
  const auto resource = collector.requests()[0].resource_spans(0).resource();
  EXPECT_EQ(resource.attributes(0).key(), "service.name");
  EXPECT_EQ(resource.attributes(0).value().string_value(), "ours");

  const auto log = RequestsInTheLog(daemon.process().err());
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].at("trace_id"), kTraceId);
  EXPECT_EQ(log[0].at("span_id"), ToHex(call.span_id()));
  // Both have the same values.
  for (const auto& [key, field] :
       std::map<std::string, std::string>{{"gen_ai.usage.prompt_tokens", "prompt_tokens"},
                                          {"gen_ai.usage.completion_tokens", "completion_tokens"},
                                          {"hydrant.usage.kv_tokens_kept", "kv_tokens_kept"},
                                          {"hydrant.usage.kv_pages_peak", "kv_pages_peak"}}) {
    const auto found =
        std::find_if(call.attributes().begin(), call.attributes().end(),
                     [&, &key = key](const auto& attribute) { return attribute.key() == key; });
    ASSERT_NE(found, call.attributes().end()) << key;
    EXPECT_EQ(log[0].at(field), found->value().int_value()) << key;
  }
}

// Two sequences do not fit together: one is swapped out to host memory and back.
TEST(TracedDaemon, TellsWhenACacheWasSwappedOut) {
  FakeCollector collector;
  Daemon daemon({"--otlp-traces-endpoint", collector.address(), "--num-gpu-blocks-override", "200",
                 "--max-model-len", "512", "--swap-space", "64M", "--log-format", "json"});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  const v1::GenerateRequest request = Tokens(16, 300);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> calls;
  for (int i = 0; i < 6; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    calls.push_back(daemon.stub().Generate(contexts.back().get(), request));
  }
  uint64_t swaps = 0, swapped_us = 0;
  for (int i = 0; i < 6; ++i) {
    StreamResult result;
    ReadRest(contexts[i].get(), calls[i].get(), &result);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    swaps += result.usage->swaps();
    swapped_us += result.usage->swapped_us();
  }
  ASSERT_GT(swaps, 0u);
  daemon.process().Signal(SIGTERM);
  ASSERT_EQ(daemon.process().Wait(), 0);
  const std::vector<Span> spans = collector.WaitForSpans(6 * 4 + swaps);
  uint64_t told = 0, told_ns = 0;
  for (const Span& span : spans) {
    if (span.name() != "swap") continue;
    ++told;
    told_ns += span.end_time_unix_nano() - span.start_time_unix_nano();
    const auto call = std::find_if(spans.begin(), spans.end(), [&](const Span& other) {
      return other.span_id() == span.parent_span_id();
    });
    ASSERT_NE(call, spans.end());
    EXPECT_EQ(call->name(), "hydrant.v1.Hydrant/Generate");
    EXPECT_EQ(call->trace_id(), span.trace_id());
    EXPECT_GE(span.start_time_unix_nano(), call->start_time_unix_nano());
    EXPECT_LE(span.end_time_unix_nano(), call->end_time_unix_nano());
  }
  EXPECT_EQ(told, swaps);
  EXPECT_EQ(told_ns, swapped_us * 1000);
}

TEST(TracedDaemon, IsConfiguredByTheEnvironment) {
  FakeCollector collector;
  const EnvironmentForNow environment(
      {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://" + collector.address()},
       {"OTEL_EXPORTER_OTLP_HEADERS", "x-key=of%20all"},
       {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=of%20traces"}});
  const auto run = [] {
    Daemon daemon;
    ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
    ASSERT_TRUE(RunToEnd(daemon.stub(), Tokens(3, 2)).status.ok());
    daemon.process().Signal(SIGTERM);
    EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
  };
  run();
  EXPECT_EQ(collector.WaitForSpans(4).size(), 4u);
  ASSERT_EQ(collector.metadata().size(), 1u);
  const FakeCollector::Metadata metadata = collector.metadata()[0];
  ASSERT_EQ(metadata.count("x-key"), 1u);
  EXPECT_EQ(metadata.find("x-key")->second, "of traces");
  const EnvironmentForNow disabled{{"OTEL_SDK_DISABLED", "true"}};
  run();
  EXPECT_EQ(collector.calls(), 1);
}

// It also sends its last spans when it exits, without waiting for the next batch.
TEST(TracedDaemon, SpeaksTlsWithACollector) {
  const TemporaryFolder folder;
  const TestAuthority authority("collectors");
  const KeyAndCertificate own = authority.Sign("collector");
  grpc::SslServerCredentialsOptions ssl;
  ssl.pem_key_cert_pairs.push_back({own.key, own.certificate});
  FakeCollector collector([](int, auto*) { return grpc::Status::OK; }, 0,
                          grpc::SslServerCredentials(ssl));
  const std::string ca = folder.Write("ca.crt", authority.certificate());
  Daemon daemon({"--otlp-traces-endpoint", "https://localhost:" + std::to_string(collector.port()),
                 "--otlp-traces-ca", ca});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  ASSERT_TRUE(RunToEnd(daemon.stub(), Tokens(3, 2)).status.ok());
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
  EXPECT_EQ(collector.WaitForSpans(4).size(), 4u);
}

TEST(TracedDaemon, ServesAndEndsWithoutItsCollector) {
  const std::string nobody = FakeCollector().address();
  Daemon daemon({"--otlp-traces-endpoint", nobody});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(RunToEnd(daemon.stub(), Tokens(3, 2)).status.ok());
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0) << daemon.process().err();
  EXPECT_THAT(daemon.process().err(), HasSubstr("traces go to " + nobody));
  EXPECT_THAT(daemon.process().err(), HasSubstr("12 spans are dropped"));
}

TEST(TracedDaemon, SaysWhichFlagIsWrong) {
  for (const auto& [flags, why] : std::map<std::vector<std::string>, std::string>{
           {{"--otlp-traces-endpoint", "http://a:4318/v1/traces"}, "--otlp-traces-endpoint: "},
           {{"--trace-sample-ratio", "1.5"}, "--trace-sample-ratio: "},
           {{"--trace-sample-ratio", "nan"}, "--trace-sample-ratio: "},
           {{"--otlp-traces-endpoint", "https://a", "--otlp-traces-ca", "/no/such/file"},
            "--otlp-traces-ca"}}) {
    for (const bool only_checked : {false, true}) {
      std::vector<std::string> arguments = {HYDRANTD_PATH, "--model",  kModel,     "--listen",
                                            "127.0.0.1:0", "--device", "reference"};
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      if (only_checked) arguments.emplace_back("--check-config");
      Subprocess process(arguments);
      EXPECT_EQ(process.Wait(), 1);
      EXPECT_THAT(process.err(), HasSubstr(why));
    }
  }
}

}  // namespace
}  // namespace hydrant
