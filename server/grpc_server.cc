#include "server/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

constexpr char kServiceName[] = "hydrant.v1.Hydrant";

void SetArguments(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  // Two daemons on one port would share the connections by chance; the second one must fail
  // instead.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Without these a client that vanished is served for minutes.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_time_ms);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout_ms);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients may ping as they like: "too_many_pings" has ended more good streams than it stopped bad
  // ones.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  const auto set_millis = [builder](const char* name, auto time) {
    if (time.has_value()) builder->AddChannelArgument(name, static_cast<int>(time->count()));
  };
  // gRPC inflates a message before it looks at its size: a megabyte on the wire can be gigabytes.
  // So none is inflated, and a call that names an encoding is refused before its message is read.
  for (const auto encoding : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE})
    builder->SetCompressionAlgorithmSupportStatus(encoding, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  set_millis(GRPC_ARG_MAX_CONNECTION_AGE_MS, options.max_connection_age);
  set_millis(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, options.max_connection_age_grace);
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  builder->SetMaxSendMessageSize(-1);
}

// gRPC removes a socket's file before it binds, also one that a living server listens on: the
// second daemon would take the first one's place.
bool SomeoneListensOn(const std::string& listen) {
  constexpr std::string_view kUnix = "unix:";
  if (!listen.starts_with(kUnix)) return false;
  std::string path = listen.substr(kUnix.size());
  if (path.starts_with("//")) path.erase(0, 2);
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) return false;  // gRPC says no
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), address.sun_path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool answered =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return answered;
}

// Threads inherit the scheduling policy of the one that starts them. gRPC's own shall be
// SCHED_BATCH: they then do not take the core from a writer that has just handed them a finished
// write. Otherwise the two take turns on one core, and on each other's locks, several times a
// token.
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

absl::Status CannotListen(const std::string& listen) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", listen,
                   ": the address is in use, not of this machine, or not host:port"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              Service* service) {
  if (SomeoneListensOn(options.listen)) return CannotListen(options.listen);
  const StartThreadsAsBatch batch;
  grpc::EnableDefaultHealthCheckService(true);
  static const bool reflection = (grpc::reflection::InitProtoReflectionServerBuilderPlugin(), true);
  (void)reflection;
  // Never given back: the last grpc_shutdown() waits up to ten seconds for a poller of gRPC's own
  // where a socket was full shortly before, and the process would end that much later.
  static const bool library = (grpc_init(), true);
  (void)library;
  grpc::ServerBuilder builder;
  SetArguments(options, &builder);
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return CannotListen(options.listen);
  std::unique_ptr<GrpcServer> started(new GrpcServer(std::move(server), port));
  started->SetServing(false);  // gRPC's health service begins as SERVING
  return started;
}

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, int port)
    : server_(std::move(server)), port_(port) {}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::milliseconds(0)); }

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus(kServiceName, serving);
  health->SetServingStatus("", serving);
}

void GrpcServer::Shutdown(std::chrono::milliseconds grace) {
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
}

}  // namespace hydrant
