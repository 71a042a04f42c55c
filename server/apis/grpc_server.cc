#include "server/apis/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/apis/control_service.h"
#include "server/apis/hydrant_service.h"
#include "server/apis/inference_service.h"
#include "server/apis/orca_service.h"
#include "server/apis/vllm_service.h"
#include "server/auth/port_credentials.h"
#include "server/net/descriptor_limit.h"

namespace hydrant {
namespace {

// Clients may check the health of the contract that they use.
constexpr const char* kHealthNames[] = {"", v1::Hydrant::service_full_name(),
                                        VllmEngine::service_full_name(),
                                        inference::GRPCInferenceService::service_full_name()};
// Limit for unsent bytes in the kernel beyond those in flight. The kernel's default is megabytes,
// and would delay the detection of a client that does not read.
constexpr int kUnsentBytes = 128 << 10;

void SetArguments(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  // A connection without a handshake holds a descriptor; gRPC's default timeout is two minutes.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options.handshake_timeout_ms);
  // Without these a client that vanished is served for minutes.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_time_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout_ms);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients may ping at any rate: in practice "too_many_pings" ends more good streams than
  // bad ones.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  const auto set_millis = [builder](const char* name, auto time) {
    if (time.has_value()) builder->AddChannelArgument(name, static_cast<int>(time->count()));
  };
  set_millis(GRPC_ARG_MAX_CONNECTION_AGE_MS, options.max_connection_age);
  set_millis(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, options.max_connection_age_grace);
  // gRPC decompresses a message before it checks its size: a megabyte on the wire can be
  // gigabytes. So decompression is off, and a call that names an encoding is refused before its
  // message is read.
  for (const auto encoding : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE})
    builder->SetCompressionAlgorithmSupportStatus(encoding, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, options.max_metadata_bytes);
  if (options.max_concurrent_streams > 0)
    builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  builder->SetMaxSendMessageSize(-1);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 1);  // the guard reads it
}

// Threads inherit the scheduling policy of their creator. gRPC's threads run as SCHED_BATCH, so
// that they do not preempt a writer that has just handed them a finished write. Otherwise both
// alternate on one core, and wait for each other's locks, several times a token.
class StartThreadsAsBatch {
 public:
  StartThreadsAsBatch() : policy_(sched_getscheduler(0)) {
    if (policy_ != SCHED_OTHER || sched_getparam(0, &parameters_) != 0)
      return;  // the user's choice
    changed_ = sched_setscheduler(0, SCHED_BATCH, &parameters_) == 0;
  }
  ~StartThreadsAsBatch() {
    if (changed_) sched_setscheduler(0, policy_, &parameters_);
  }
  StartThreadsAsBatch(const StartThreadsAsBatch&) = delete;
  StartThreadsAsBatch& operator=(const StartThreadsAsBatch&) = delete;

 private:
  const int policy_;
  sched_param parameters_{};
  bool changed_ = false;
};

// Options that gRPC would set on its own listener; accepted sockets inherit them. gRPC does
// not ping connections without calls; TCP keepalive detects a vanished client within a minute
// and a half.
void SetSocketOptions(const GrpcServerOptions& options, const ListeningSockets& sockets) {
  const auto set = [](int fd, int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));  // fails harmlessly for a unix socket
  };
  for (const int fd : sockets.fds()) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, options.keepalive_timeout_ms);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  }
}

ConnectionLimits LimitsOf(const GrpcServerOptions& options) {
  return {.max_streams = static_cast<uint64_t>(options.max_concurrent_streams),
          .max_message_bytes = static_cast<uint64_t>(options.max_message_bytes),
          .max_metadata_bytes = static_cast<uint64_t>(options.max_metadata_bytes),
          .max_held_bytes = options.max_held_bytes};
}

void SetHealth(grpc::Server* server, bool serving) {
  grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
  for (const char* name : kHealthNames) health->SetServingStatus(name, serving);
}

}  // namespace

// The gRPC services of one address.
struct GrpcServer::Contracts {
  Contracts(const DefaultCache& default_cache, Service* service)
      : hydrant(default_cache, service),
        vllm(default_cache, service),
        inference(service),
        orca(service) {}

  HydrantService hydrant;
  VllmService vllm;
  InferenceService inference;
  OrcaService orca;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              Service* service) {
  HYDRANT_ASSIGN_OR_RETURN(ListeningSockets sockets, ListeningSockets::Open(options.listen));
  if (options.certificates == nullptr && !options.insecure && !sockets.AreLocal()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot listen on ", options.listen,
        " without TLS: other machines can connect there, and whoever is on the way can read and "
        "change what is sent. Give --tls-certificate and --tls-key, or listen on 127.0.0.1 or "
        "unix:/path, or say --insecure where the network is trusted"));
  }
  SetSocketOptions(options, sockets);
  const StartThreadsAsBatch batch;
  grpc::EnableDefaultHealthCheckService(true);
  static const bool reflection = (grpc::reflection::InitProtoReflectionServerBuilderPlugin(), true);
  (void)reflection;
  if (options.authorizer.has_control) {
    static const bool channelz = (grpc::channelz::experimental::InitChannelzService(), true);
    (void)channelz;
  }
  // Never released: the last grpc_shutdown() waits up to ten seconds for one of gRPC's pollers if a
  // socket was full shortly before, which would delay the exit of the process.
  static const bool library = (grpc_init(), true);
  (void)library;
  grpc::ServerBuilder builder;
  SetArguments(options, &builder);
  std::unique_ptr<Gate> gate = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      NewPortCredentials(options.certificates, CallAuthorizer(options.authorizer)));
  auto contracts = std::make_unique<Contracts>(options.default_cache, service);
  builder.RegisterService(&contracts->hydrant);
  builder.RegisterService(&contracts->vllm);
  builder.RegisterService(&contracts->inference);
  if (options.control != nullptr) builder.RegisterService(options.control);
  builder.RegisterService(&contracts->orca);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC could not start its server");
  // Before the first connection is accepted: gRPC's health service begins as SERVING.
  SetHealth(server.get(), false);
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(contracts), std::move(server),
                                                    std::move(gate), std::move(sockets), options));
}

GrpcServer::GrpcServer(std::unique_ptr<Contracts> contracts, std::unique_ptr<grpc::Server> server,
                       std::unique_ptr<Gate> gate, ListeningSockets sockets,
                       const GrpcServerOptions& options)
    : contracts_(std::move(contracts)),
      server_(std::move(server)),
      gate_(std::move(gate)),
      local_address_(sockets.LocalAddress()),
      guard_(std::make_unique<ConnectionGuard>(LimitsOf(options), options.connection_metrics,
                                               [this](int fd) {
                                                 Gate::NewConnectionParameters connection;
                                                 connection.fd = fd;
                                                 gate_->HandleNewConnection(&connection);
                                               })),
      acceptor_(std::make_unique<Acceptor>(
          std::move(sockets), DescriptorsForConnections(DescriptorLimit()),
          [this](int fd) { guard_->Take(fd); }, options.max_connections)) {}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::milliseconds(0)); }

void GrpcServer::SetServing(bool serving) { SetHealth(server_.get(), serving); }

void GrpcServer::Shutdown(std::chrono::milliseconds grace) {
  acceptor_->Stop();
  guard_->Stop();
  contracts_->orca.EndAll();
  contracts_->vllm.EndSubscriptions();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
}

}  // namespace hydrant
