// A whole server on a free loopback port, over a fake engine, and helpers for tests.
#ifndef HYDRANT_TESTS_SERVER_TEST_SERVER_H_
#define HYDRANT_TESTS_SERVER_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>
#include <spdlog/common.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "hydrant/v1/hydrant.grpc.pb.h"
#include "scheduler/context_archive.h"
#include "scheduler/serving_loop.h"
#include "server/apis/grpc_server.h"
#include "server/requests/service.h"
#include "tests/server/byte_tokenizer.h"
#include "tests/server/fake_engine.h"

namespace hydrant {

EngineLimits TestLimits();

struct TestServerOptions {
  EngineLimits limits = TestLimits();
  SchedulerOptions scheduler;
  CacheSpec default_cache;
  size_t max_buffered_bytes = size_t{1} << 20;
  size_t max_waiting_request_bytes = ServiceOptions().max_waiting_request_bytes;
  bool chat = true;
  bool ready = true;
  std::chrono::microseconds max_write_wait{0};
  GrpcServerOptions grpc;            // except `listen`
  const Tenants* tenants = nullptr;  // outlives the server; null: no authentication
  const Tracer* tracer = nullptr;    // outlives the server; null: tracing is off
  // a line per request would hide the results
  spdlog::level::level_enum log_level = spdlog::level::warn;
  std::function<TokenId(int32_t)> next_token;
  std::function<TokenId(uint64_t, int32_t)> next_token_of;
  std::function<void()> after_step;
};

class TestServer {
 public:
  TestServer();
  explicit TestServer(const TestServerOptions& options);
  ~TestServer();

  std::string address() const;
  int port() const { return server->port(); }
  // A stub with its own connection.
  std::unique_ptr<v1::Hydrant::Stub> NewStub() const;
  std::shared_ptr<grpc::Channel> NewChannel() const;
  std::shared_ptr<grpc::Channel> NewChannel(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const;
  v1::Hydrant::Stub& stub() { return *stub_; }

  // The text of a daemon's /metrics.
  std::string MetricsText() const;

  // Waits until nothing waits or runs and all pages are free.
  bool WaitUntilEmpty();

  PausableEngine engine;
  ByteTokenizer tokenizer;
  LineTemplate chat_template;
  ServedModel model;
  EventRouter router;
  const Tenants* const tenants;
  AuthorizerMetrics authorizer_metrics;
  ConnectionGuardMetrics connection_metrics;
  std::unique_ptr<Service> service;
  std::unique_ptr<ServingLoop> loop;
  std::unique_ptr<ContextArchive> contexts;
  std::unique_ptr<GrpcServer> server;

 private:
  std::unique_ptr<v1::Hydrant::Stub> stub_;
};

// One call, read to its end.
struct StreamResult {
  std::vector<v1::GenerateResponse> events;
  std::string text;
  std::vector<uint32_t> token_ids;
  grpc::Status status;
  std::optional<v1::Usage> usage;          // the last message
  std::optional<v1::Usage> trailer_usage;  // of a failed stream
};
StreamResult RunToEnd(v1::Hydrant::Stub& stub, const v1::GenerateRequest& request,
                      grpc::ClientContext* context = nullptr);
// For a call with a context that the caller may cancel: reads the rest.
void ReadRest(grpc::ClientContext* context, grpc::ClientReader<v1::GenerateResponse>* reader,
              StreamResult* result);

v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_tokens);

grpc::health::v1::HealthCheckResponse::ServingStatus HealthOf(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& service);

struct ErrorDetails {
  std::string reason, domain;
  std::string field, description;
  double retry_s = 0;
};
ErrorDetails DetailsOf(const grpc::Status& status);

// Polls until `condition` holds; false after half a minute.
bool WaitFor(const std::function<bool()>& condition);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_TEST_SERVER_H_
