// Security options of hydrantd: flags, files, signals, and the contents of its log and settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/server/daemon_process.h"
#include "tests/server/environment.h"
#include "tests/server/fake_collector.h"
#include "tests/server/http_get.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/token_entry.h"
#include "tests/subprocess.h"

namespace hydrant {
namespace {

using grpc::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Ended {
  int code;
  std::string out, err;
};
Ended RunToItsEnd(const std::vector<std::string>& arguments) {
  Subprocess process(arguments);
  const int code = process.Wait();
  return {code, process.out(), process.err()};
}

Ended Start(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {HYDRANTD_PATH, "--model", kModel, "--device", "reference"});
  return RunToItsEnd(flags);
}

grpc::Status Ask(Daemon& daemon, const std::string& token, const std::string& prompt = "x") {
  grpc::ClientContext context;
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(1);
  if (prompt != "x") request.set_text(prompt);
  request.mutable_stopping()->set_max_tokens(2);
  return RunToEnd(daemon.stub(), request, &context).status;
}

TEST(SecureDaemon, FlagsThatDoNotGoTogetherAreNamed) {
  const TemporaryFolder folder;
  const std::string bad_tokens = folder.Write("bad.yaml", "tokens:\n  - {tenant: a}\n");
  const struct {
    std::vector<std::string> flags;
    std::vector<std::string> mentions;
  } cases[] = {
      {{"--listen", "0.0.0.0:0"}, {"--listen", "--insecure", "--tls-certificate"}},
      {{"--listen-as", "0.0.0.0:0=full", "--listen", "127.0.0.1:0"}, {"--listen-as", "--insecure"}},
      {{"--control-listen", "0.0.0.0:0", "--listen", "127.0.0.1:0"},
       {"--control-listen", "--insecure"}},
      {{"--control-listen", "x:y"}, {"--control-listen", "x:y"}},
      {{"--tls-certificate", "a"}, {"--tls-key: is missing"}},
      {{"--tls-key", "a"}, {"--tls-certificate: is missing"}},
      {{"--tls-client-ca", "a"}, {"--tls-client-ca", "--tls-certificate"}},
      {{"--tls-certificate", "/no/such", "--tls-key", "/no/such"},
       {"--tls-certificate /no/such", "No such file"}},
      {{"--auth-tokens", "/no/such"}, {"--auth-tokens: /no/such", "No such file"}},
      {{"--auth-tokens", bad_tokens}, {"--auth-tokens", bad_tokens, "line 2: sha256: is missing"}},
      {{"--new-token", "a b"}, {"--new-token"}},
      {{"--max-metadata-bytes", "1"}, {"--max-metadata-bytes"}},
  };
  for (const auto& c : cases) {
    const Ended ended = Start(c.flags);
    EXPECT_EQ(ended.code, 1) << c.flags.front();
    for (const std::string& mention : c.mentions) EXPECT_THAT(ended.err, HasSubstr(mention));
  }
  const Ended nothing = RunToItsEnd({HYDRANTD_PATH});
  EXPECT_EQ(nothing.code, 1);
  EXPECT_THAT(nothing.err, HasSubstr("no model is given"));
}

// The output of --new-token is valid, the client sends the token, and other callers are refused;
// SIGHUP reads the file again.
TEST(SecureDaemon, TokensFromTheFirstToTheLast) {
  const Ended made = RunToItsEnd({HYDRANTD_PATH, "--new-token", "acme"});
  ASSERT_EQ(made.code, 0) << made.err;
  const size_t begin = made.out.find('\n') + 1;
  const std::string token = made.out.substr(begin, made.out.find('\n', begin) - begin);
  const std::string entry = made.out.substr(made.out.find("  - tenant"));
  const TemporaryFolder folder;
  const std::string file = folder.Write("tokens.yaml", "tokens:\n" + entry);
  Daemon daemon({"--auth-tokens", file});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  EXPECT_THAT(daemon.process().err(), HasSubstr("1 tokens of " + file));
  EXPECT_EQ(Ask(daemon, token).error_code(), StatusCode::OK);
  EXPECT_EQ(Ask(daemon, "").error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Ask(daemon, "other").error_code(), StatusCode::UNAUTHENTICATED);

  const std::string client_token = folder.Write("token", token + "\n");
  EXPECT_EQ(RunToItsEnd(
                {HYDRANT_PATH, "info", "--address", daemon.address(), "--token-file", client_token})
                .code,
            0);
  const Ended refused = RunToItsEnd({HYDRANT_PATH, "info", "--address", daemon.address()});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("authorization: Bearer TOKEN"));

  folder.Write("tokens.yaml", "tokens:\n  - {tenant: zeta}\n");
  daemon.process().Signal(SIGHUP);
  EXPECT_THAT(daemon.process().WaitForErrorLine("stay in force"),
              AllOf(HasSubstr("--auth-tokens"), HasSubstr("line 2: sha256")));
  EXPECT_EQ(Ask(daemon, token).error_code(), StatusCode::OK);
  folder.Write("tokens.yaml", "tokens:\n" + EntryOf("zeta", "of-zeta"));
  daemon.process().Signal(SIGHUP);
  EXPECT_NE(daemon.process().WaitForErrorLine("are in force"), "");
  EXPECT_EQ(Ask(daemon, token).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Ask(daemon, "of-zeta").error_code(), StatusCode::OK);
}

TEST(SecureDaemon, SpeaksTlsToItsClientAndItsHealthLooksWell) {
  const TemporaryFolder folder;
  const TestAuthority authority("CA");
  const KeyAndCertificate server = authority.Sign("server"), client = authority.Sign("client");
  const std::string ca = folder.Write("ca.crt", authority.certificate());
  const std::string certificate = folder.Write("client.crt", client.certificate);
  const std::string key = folder.Write("client.key", client.key);
  Daemon daemon({"--tls-certificate", folder.Write("server.crt", server.certificate), "--tls-key",
                 folder.Write("server.key", server.key), "--tls-client-ca", ca, "--log-level",
                 "info"});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  EXPECT_THAT(daemon.process().err(), HasSubstr("TLS, with clients' certificates"));
  const auto health = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {HYDRANT_PATH, "health", "--address", daemon.address()});
    return RunToItsEnd(flags);
  };
  EXPECT_EQ(health({"--tls-ca", ca, "--tls-certificate", certificate, "--tls-key", key}).code, 0);
  EXPECT_NE(health({"--tls-ca", ca}).code, 0) << "without a certificate of its own";
  EXPECT_NE(health({}).code, 0) << "without TLS";
  EXPECT_THAT(health({"--tls-ca", "/no/such"}).err, HasSubstr("/no/such"));
  // All reported together: files, addresses. A new certificate is loaded on SIGHUP.
  folder.Write("server.key", authority.Sign("another").key);
  daemon.process().Signal(SIGHUP);
  EXPECT_THAT(daemon.process().WaitForErrorLine("from before"), HasSubstr("--tls-key"));
  const KeyAndCertificate next = authority.Sign("next");
  folder.Write("server.crt", next.certificate);
  folder.Write("server.key", next.key);
  daemon.process().Signal(SIGHUP);
  EXPECT_NE(daemon.process().WaitForErrorLine("new connections get the certificates"), "");
  EXPECT_EQ(health({"--tls-ca", ca, "--tls-certificate", certificate, "--tls-key", key}).code, 0);
}

// Not in the log at debug level, the settings, the metrics or the traces.
TEST(SecureDaemon, PromptsAndSecretsAreNotLogged) {
  const std::string token = "hyd_the-secret-token", prompt = "the quick brown prompt";
  const TemporaryFolder folder;
  const TestAuthority authority("CA");
  const std::string file =
      folder.Write("tokens.yaml", "tokens:\n" + EntryOf("acme", token, ", admin: true"));
  FakeCollector collector;
  const EnvironmentForNow environment{{"OTEL_EXPORTER_OTLP_HEADERS", "x-key=the-collectors-key"}};
  Daemon daemon({"--auth-tokens", file, "--log-level", "debug", "--metrics-listen", "127.0.0.1:0",
                 "--context-store", "redis://:the-password@127.0.0.1:1/0", "--otlp-traces-endpoint",
                 collector.address()});
  ASSERT_FALSE(daemon.address().empty()) << daemon.process().err();
  EXPECT_EQ(Ask(daemon, token, prompt).error_code(), StatusCode::OK);
  EXPECT_EQ(Ask(daemon, "hyd_a-wrong-token").error_code(), StatusCode::UNAUTHENTICATED);
  v1::GenerateRequest wrong;
  wrong.set_text(prompt + std::string(1, '\xff'));  // invalid UTF-8
  grpc::ClientContext wrong_context;
  wrong_context.AddMetadata("authorization", "Bearer " + token);
  EXPECT_FALSE(RunToEnd(daemon.stub(), wrong, &wrong_context).status.ok());
  {  // gRPC logs it, and may close the connection
    grpc::ChannelArguments alone;
    alone.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::Hydrant::NewStub(
        grpc::CreateCustomChannel(daemon.address(), grpc::InsecureChannelCredentials(), alone));
    grpc::ClientContext long_context;
    long_context.AddMetadata("authorization", "Bearer " + token + std::string(20000, 'x'));
    EXPECT_EQ(RunToEnd(*stub, {}, &long_context).status.error_code(),
              StatusCode::RESOURCE_EXHAUSTED);
  }
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token);
  v1::GetServerInfoResponse info;
  const grpc::Status asked = daemon.stub().GetServerInfo(&context, {}, &info);
  ASSERT_TRUE(asked.ok()) << asked.error_code() << " " << asked.error_message();
  EXPECT_EQ(info.options().at("auth-tokens"), file);
  const std::string metrics = HttpGet(daemon.MetricsAddress(), "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("hydrant_tenant_requests_total{tenant=\"acme\"}"));
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  const std::string log = daemon.process().err() + daemon.process().out();
  EXPECT_THAT(log, HasSubstr("new tokens")) << "the request is there";
  std::string traces;
  for (const auto& span : collector.WaitForSpans(5)) traces += span.DebugString();
  EXPECT_THAT(collector.metadata().at(0),
              testing::Contains(testing::Pair("x-key", "the-collectors-key")));
  EXPECT_THAT(traces, HasSubstr("acme"));
  EXPECT_THAT(traces, HasSubstr("INVALID")) << "the wrong request is there";
  for (const std::string& secret :
       {token, std::string("hyd_a-wrong-token"), prompt, std::string("quick brown"),
        std::string("the-password"), std::string("the-collectors-key")}) {
    EXPECT_THAT(log, Not(HasSubstr(secret)));
    EXPECT_THAT(info.DebugString(), Not(HasSubstr(secret)));
    EXPECT_THAT(metrics, Not(HasSubstr(secret)));
    EXPECT_THAT(traces, Not(HasSubstr(secret)));
  }
}

}  // namespace
}  // namespace hydrant
