#include "tests/server/test_server.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "google/rpc/status.pb.h"
#include "server/apis/metrics.h"
#include "server/wire/context_conversion.h"

namespace hydrant {

EngineLimits TestLimits() {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .block_size = 16,
          .num_blocks = 8192,
          .page_bytes = 1024,
          .table_entries = 65536,
          .max_num_seqs = 16,
          .max_model_len = 2048,
          .prefill_arena_tokens = 4096};
}

TestServer::TestServer() : TestServer(TestServerOptions()) {}

TestServer::TestServer(const TestServerOptions& options)
    : engine(options.limits), router(options.max_write_wait), tenants(options.tenants) {
  spdlog::set_level(options.log_level);
  if (options.next_token) engine.next_token = options.next_token;
  engine.next_token_of = options.next_token_of;
  engine.after_step = options.after_step;
  model.name = "test-model";
  model.config.architecture = "fake";
  model.limits = options.limits;
  model.page_bytes = 1024;
  model.memory = {.weights = 4096,
                  .kv_pool = 8388608,
                  .workspace = 512,
                  .prefix_cache = 256,
                  .offloaded_caches = 128};
  model.engine_description = "fake";
  model.tokenizer = &tokenizer;
  if (options.chat) model.chat_template = &chat_template;
  model.no_chat_reason = "the model has no chat template";

  ServiceOptions service_options;
  service_options.version = "test";
  service_options.max_buffered_bytes_per_stream = options.max_buffered_bytes;
  service_options.max_waiting_request_bytes = options.max_waiting_request_bytes;
  service_options.tenants = options.tenants;
  service_options.tracer = options.tracer;
  service = std::make_unique<Service>(service_options, &router);
  GrpcServerOptions server_options = options.grpc;
  server_options.listen = "127.0.0.1:0";
  server_options.default_cache.spec = options.default_cache;
  server_options.authorizer.tenants = options.tenants;
  server_options.authorizer.metrics = &authorizer_metrics;
  server_options.connection_metrics = &connection_metrics;
  auto started = GrpcServer::Start(server_options, service.get());
  auto running = ServingLoop::Start(&engine, &tokenizer, options.scheduler, &router);
  if (!started.ok() || !running.ok()) std::abort();
  server = *std::move(started);
  loop = *std::move(running);
  contexts = std::make_unique<ContextArchive>(loop.get(), OffloadMemory(), HomeOf(model), nullptr);
  if (options.ready) {
    service->SetReady(&model, loop.get(), contexts.get());
    server->SetServing(true);
  }
  stub_ = NewStub();
}

TestServer::~TestServer() {
  engine.Resume();
  loop->Stop();
  server->Shutdown(std::chrono::milliseconds(500));
}

std::string TestServer::address() const { return "127.0.0.1:" + std::to_string(server->port()); }

std::shared_ptr<grpc::Channel> TestServer::NewChannel() const {
  return NewChannel(grpc::InsecureChannelCredentials());
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address(), credentials, arguments);
}

std::unique_ptr<v1::Hydrant::Stub> TestServer::NewStub() const {
  return v1::Hydrant::NewStub(NewChannel());
}

std::string TestServer::MetricsText() const {
  const ServingState serving = service->Current();
  const TimeUs now = std::chrono::duration_cast<std::chrono::microseconds>(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count();
  return hydrant::MetricsText({.version = "test",
                               .started_at = std::chrono::system_clock::now(),
                               .serving = serving,
                               .health = JudgeHealth(serving, now, 60'000'000, PortState::kAnswers),
                               .requests = &service->request_metrics(),
                               .now = now,
                               .tenants = tenants,
                               .authorizer = &authorizer_metrics,
                               .connections = &connection_metrics});
}

bool TestServer::WaitUntilEmpty() {
  return WaitFor(
      [this] { return loop->Idle() && loop->Stats().pages_free == loop->Stats().pages_total; });
}

void ReadRest(grpc::ClientContext* context, grpc::ClientReader<v1::GenerateResponse>* reader,
              StreamResult* result) {
  for (v1::GenerateResponse response; reader->Read(&response);) {
    result->text += response.delta().text();
    for (const uint32_t id : response.delta().token_ids()) result->token_ids.push_back(id);
    if (response.has_usage()) result->usage = response.usage();
    result->events.push_back(response);
  }
  result->status = reader->Finish();
  const auto& trailers = context->GetServerTrailingMetadata();
  if (const auto it = trailers.find("hydrant-usage-bin"); it != trailers.end()) {
    result->trailer_usage.emplace().ParseFromString(
        std::string(it->second.data(), it->second.size()));
  }
}

StreamResult RunToEnd(v1::Hydrant::Stub& stub, const v1::GenerateRequest& request,
                      grpc::ClientContext* context) {
  grpc::ClientContext own;
  if (context == nullptr) context = &own;
  StreamResult result;
  const auto reader = stub.Generate(context, request);
  ReadRest(context, reader.get(), &result);
  return result;
}

v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

grpc::health::v1::HealthCheckResponse::ServingStatus HealthOf(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub->Check(&context, request, &response);
  return status.ok() ? response.status() : grpc::health::v1::HealthCheckResponse::SERVICE_UNKNOWN;
}

ErrorDetails DetailsOf(const grpc::Status& status) {
  ErrorDetails details;
  google::rpc::Status rich;
  rich.ParseFromString(status.error_details());
  for (const auto& any : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      details.reason = info.reason();
      details.domain = info.domain();
    }
    if (any.UnpackTo(&bad) && bad.field_violations_size() == 1) {
      details.field = bad.field_violations(0).field();
      details.description = bad.field_violations(0).description();
    }
    if (any.UnpackTo(&retry)) {
      details.retry_s =
          static_cast<double>(retry.retry_delay().seconds()) + retry.retry_delay().nanos() * 1e-9;
    }
  }
  return details;
}

bool WaitFor(const std::function<bool()>& condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace hydrant
