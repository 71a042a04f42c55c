// Tracing options from the command line, OpenTelemetry's environment and the file of --config:
// precedence, refusals and the names in errors, and that headers are secrets.
#include "server/observe/trace_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "server/observe/trace_headers.h"
#include "server/startup/daemon_options.h"
#include "tests/server/environment.h"
#include "tests/server/test_certificates.h"

namespace hydrant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::StartsWith;

CommandLine Parse(const std::vector<std::string>& flags) {
  std::vector<const char*> argv{"hydrantd", "--model", "models/hydrant-tiny.gguf"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data());
}

TraceOptions Parsed(const std::vector<std::string>& flags = {}) {
  const CommandLine line = Parse(flags);
  EXPECT_TRUE(line.options.has_value()) << line.text;
  return line.options.has_value() ? line.options->traces : TraceOptions{};
}

TEST(TraceOptions, KnowWhereACollectorIs) {
  const auto read = [](const char* text) -> std::string {
    const absl::StatusOr<TraceEndpoint> endpoint = ParseTraceEndpoint(text);
    if (!endpoint.ok()) return "error: " + std::string(endpoint.status().message());
    return (endpoint->tls ? "tls " : "plain ") + endpoint->address;
  };
  EXPECT_EQ(read("collector:4317"), "plain collector:4317");
  EXPECT_EQ(read("collector"), "plain collector:4317");
  EXPECT_EQ(read("http://collector:1"), "plain collector:1");
  EXPECT_EQ(read("http://127.0.0.1/"), "plain 127.0.0.1:4317");
  EXPECT_EQ(read("https://collector.example:443/"), "tls collector.example:443");
  EXPECT_EQ(read("https://collector.example"), "tls collector.example:4317");
  EXPECT_EQ(read("[::1]:4317"), "plain [::1]:4317");
  EXPECT_EQ(read("https://[::1]"), "tls [::1]:4317");
  for (const char* bad : {"", "http://", "https://", "http://collector:4318/v1/traces", ":4317",
                          "collector:0", "collector:65536", "collector:port",
                          "collector:", "grpc://collector:4317", "unix:/run/collector"}) {
    EXPECT_THAT(read(bad), testing::StartsWith("error: '" + std::string(bad))) << bad;
  }
}

TEST(TraceOptions, AreCheckedTogether) {
  EXPECT_TRUE(CheckTraces({}).ok());
  EXPECT_TRUE(CheckTraces({.endpoint = "a:1"}).ok());
  EXPECT_TRUE(CheckTraces({.endpoint = "https://a:1", .ca = "ca.pem"}).ok());
  const auto why = [](const TraceOptions& options) {
    return std::string(CheckTraces(options).message());
  };
  EXPECT_THAT(why({.endpoint = "a:b"}), testing::StartsWith("--otlp-traces-endpoint: 'a:b'"));
  EXPECT_THAT(why({.endpoint = "a:1", .ca = "ca.pem"}), testing::StartsWith("--otlp-traces-ca: "));
  for (const double ratio : {-0.1, 1.1, std::nan("")})
    EXPECT_THAT(why({.sample_ratio = ratio}), testing::StartsWith("--trace-sample-ratio: "));
}

TEST(TraceEnvironment, IsThatOfTracesElseThatOfAllSignals) {
  EXPECT_EQ(Parsed().endpoint, "");
  const EnvironmentForNow all{{"OTEL_EXPORTER_OTLP_ENDPOINT", "https://all:1"},
                              {"OTEL_EXPORTER_OTLP_CERTIFICATE", "all.pem"},
                              {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
                              {"OTEL_EXPORTER_OTLP_HEADERS", "a=all"},
                              {"OTEL_SERVICE_NAME", "ours"}};
  const TraceOptions of_all = Parsed();
  EXPECT_EQ(of_all.endpoint, "https://all:1");
  EXPECT_EQ(of_all.ca, "all.pem");
  EXPECT_EQ(of_all.headers.value, "a=all");
  EXPECT_EQ(of_all.service_name, "ours");
  {
    const EnvironmentForNow empty(
        {{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""}, {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", ""}});
    EXPECT_EQ(Parsed().endpoint, "https://all:1");
    EXPECT_EQ(Parsed().headers.value, "a=all");
  }
  const EnvironmentForNow traces{{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces:1"},
                                 {"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "traces.pem"},
                                 {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=traces"}};
  const TraceOptions of_traces = Parsed();
  EXPECT_EQ(of_traces.endpoint, "https://traces:1");
  EXPECT_EQ(of_traces.ca, "traces.pem");
  EXPECT_EQ(of_traces.headers.value, "b=traces");
}

TEST(TraceEnvironment, LosesToTheCommandLineAndWinsOverTheFile) {
  const TemporaryFolder folder;
  const std::string file =
      folder.Write("hydrantd.yaml", "otlp-traces-endpoint: file:1\notlp-service-name: filed\n");
  EXPECT_EQ(Parsed({"--config", file}).endpoint, "file:1");
  for (const char* name : {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}) {
    const EnvironmentForNow environment{{name, "environment:1"}};
    EXPECT_EQ(Parsed({"--config", file}).endpoint, "environment:1");
    EXPECT_EQ(Parsed({"--config", file}).service_name, "filed");
    const std::vector<std::string> flags = {"--otlp-traces-endpoint", "flag:1", "--config", file};
    EXPECT_EQ(Parsed(flags).endpoint, "flag:1");
  }
}

TEST(TraceEnvironment, TurnsTracesOff) {
  const std::vector<std::string> flags = {"--otlp-traces-endpoint", "a:1"};
  for (const char* value : {"", "false", "1", "yes"}) {
    const EnvironmentForNow environment{{"OTEL_SDK_DISABLED", value}};
    EXPECT_TRUE(Parsed(flags).Wanted()) << value;
  }
  for (const char* value : {"true", "True", "TRUE"}) {
    // Then the other variables are ignored.
    const EnvironmentForNow environment{{"OTEL_SDK_DISABLED", value},
                                        {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318/v1"},
                                        {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}};
    EXPECT_FALSE(Parsed(flags).Wanted()) << value;
    EXPECT_FALSE(Parsed().Wanted()) << value;
  }
}

// Checked only if there is a collector; otherwise the variables concern other programs.
TEST(TraceEnvironment, IsNamedWhereItIsWrong) {
  const std::string general = "OTEL_EXPORTER_OTLP_", traces = "OTEL_EXPORTER_OTLP_TRACES_";
  for (const std::string& prefix : {general, traces}) {
    const auto why = [&](const std::string& setting, const std::string& value,
                         const std::vector<std::string>& flags) {
      const EnvironmentForNow environment{{prefix + setting, value}};
      const CommandLine line = Parse(flags);
      EXPECT_EQ(line.exit_code, 1) << setting;
      EXPECT_THAT(line.text, Not(HasSubstr("--otlp"))) << setting;
      return line.text;
    };
    EXPECT_THAT(why("ENDPOINT", "http://a:4318/v1/traces", {}),
                StartsWith("hydrantd: " + prefix + "ENDPOINT: 'http://a:4318/v1/traces' is not"));
    const EnvironmentForNow endpoint{{general + "ENDPOINT", "a:1"}};
    for (const char* protocol : {"http/protobuf", "http/json", "GRPC"}) {
      const std::string text = why("PROTOCOL", protocol, {});
      EXPECT_THAT(text, StartsWith("hydrantd: " + prefix + "PROTOCOL: '" + protocol + "'"));
      EXPECT_THAT(text, HasSubstr("only grpc"));
      EXPECT_THAT(text, HasSubstr("set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc"));
    }
    EXPECT_THAT(why("CERTIFICATE", "ca.pem", {}),
                StartsWith("hydrantd: " + prefix + "CERTIFICATE: "));
    EXPECT_THAT(why("HEADERS", "a=1,secret", {}),
                StartsWith("hydrantd: " + prefix + "HEADERS: entry 2 is not KEY=VALUE"));
  }
  const EnvironmentForNow environment{{general + "PROTOCOL", "http/protobuf"},
                                      {general + "HEADERS", "secret"},
                                      {general + "CERTIFICATE", "ca.pem"}};
  EXPECT_FALSE(Parsed().Wanted());
  // The remedy of that error.
  const EnvironmentForNow grpc{{traces + "PROTOCOL", "grpc"},
                               {traces + "HEADERS", "a=b"},
                               {traces + "ENDPOINT", "https://a"}};
  EXPECT_TRUE(Parsed().Wanted());
}

TEST(TraceEnvironment, HeadersAreInNoSettings) {
  const EnvironmentForNow environment{{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:1"},
                                      {"OTEL_EXPORTER_OTLP_HEADERS", "x-key=the-secret"}};
  const CommandLine checked = Parse({"--check-config", "--device", "cpu"});
  EXPECT_EQ(checked.exit_code, 0) << checked.text;
  EXPECT_THAT(checked.text, HasSubstr("otlp-traces-endpoint: collector:1"));
  EXPECT_THAT(checked.text, Not(HasSubstr("the-secret")));
  const CommandLine line = Parse({});
  ASSERT_TRUE(line.options.has_value()) << line.text;
  EXPECT_EQ(line.options->flags.at("otlp-traces-endpoint"), "collector:1");
  for (const auto& [flag, value] : line.options->flags)
    EXPECT_THAT(value, Not(HasSubstr("the-secret"))) << flag;
}

TEST(TraceHeaders, ArePercentDecoded) {
  const auto parse = [](const char* text) {
    const absl::StatusOr<TraceHeaders> headers = ParseTraceHeaders(text);
    EXPECT_TRUE(headers.ok()) << text << ": " << headers.status();
    return headers.value_or(TraceHeaders{});
  };
  EXPECT_THAT(parse(""), ElementsAre());
  EXPECT_THAT(parse(" , "), ElementsAre());
  EXPECT_THAT(parse("a=1"), ElementsAre(Pair("a", "1")));
  EXPECT_THAT(parse(" a = 1 ,\tb=2,"), ElementsAre(Pair("a", "1"), Pair("b", "2")));
  EXPECT_THAT(parse("Authorization=Basic%20dTpw=="),
              ElementsAre(Pair("authorization", "Basic dTpw==")));
  EXPECT_THAT(parse("x-a=%2C%3d%25,x-b="), ElementsAre(Pair("x-a", ",=%"), Pair("x-b", "")));
  EXPECT_THAT(parse("a=1,A=2"), ElementsAre(Pair("a", "2")));
  EXPECT_THAT(parse("k-bin=%00%ff"), ElementsAre(Pair("k-bin", std::string("\0\xff", 2))));
}

// Errors do not contain the text.
TEST(TraceHeaders, AreRefusedByTheirPlace) {
  for (const auto& [text, why] :
       std::map<std::string, std::string>{{"secret", "entry 1 is not KEY=VALUE"},
                                          {"a=1,,secret", "entry 3 is not KEY=VALUE"},
                                          {"a=secret%", "entry 1 has a %"},
                                          {"a=secret%2", "entry 1 has a %"},
                                          {"a=secret%2g", "entry 1 has a %"},
                                          {"a=secret%-1", "entry 1 has a %"},
                                          {"a=secret%0x41", "entry 1 has a %"},
                                          {"a=1,=secret", "entry 2 cannot be sent"},
                                          {"my secret=1", "entry 1 cannot be sent"},
                                          {":secret=1", "entry 1 cannot be sent"},
                                          {"grpc-secret=1", "entry 1 cannot be sent"},
                                          {"a=secret%0d%0ab:%20c", "entry 1 cannot be sent"},
                                          {"a=secret\xc3\xa4", "entry 1 cannot be sent"}}) {
    const absl::Status status = ParseTraceHeaders(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), StartsWith(why)) << text;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace hydrant
