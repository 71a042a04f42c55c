// The gRPC server: one address, the contracts that we speak, the standard health service and
// reflection. The port opens in Start(), with health NOT_SERVING. Connections are accepted by an
// Acceptor, and gRPC gets their sockets. Thread safe.
#ifndef HYDRANT_SERVER_APIS_GRPC_SERVER_H_
#define HYDRANT_SERVER_APIS_GRPC_SERVER_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/auth/call_authorizer.h"
#include "server/net/acceptor.h"
#include "server/net/certificates.h"
#include "server/net/connection_guard.h"
#include "server/requests/service.h"
#include "server/wire/default_cache.h"

namespace grpc {
class Server;
namespace experimental {
class ExternalConnectionAcceptor;
}
}  // namespace grpc

namespace hydrant {

class ControlService;

struct GrpcServerOptions {
  std::string listen = "127.0.0.1:50051";  // host:port; port 0: any; also unix:/path
  // A connection that answers no ping for this long is closed, and its requests are cancelled.
  int keepalive_time_ms = 10'000;
  int keepalive_timeout_ms = 5'000;
  DefaultCache default_cache = {};    // of requests that come here
  int handshake_timeout_ms = 10'000;  // for a new connection to say that it speaks HTTP/2
  // After this a connection gets a GOAWAY, and its client opens another; streams that are open then
  // may go on for `grace`. Unset: for ever. gRPC varies the age by a tenth.
  std::optional<std::chrono::milliseconds> max_connection_age = {};
  std::optional<std::chrono::milliseconds> max_connection_age_grace = {};
  int max_message_bytes = 16 << 20;   // received; a prompt of a million token ids fits
  int max_metadata_bytes = 8 << 10;   // the headers of a call
  int max_concurrent_streams = 2000;  // of a connection; 0: any number
  // Of memory that connections hold without use (connection_rules.h), all together.
  double max_held_bytes = 512 << 20;
  int max_connections = 0;                               // the same
  std::shared_ptr<Certificates> certificates = nullptr;  // null: no TLS
  bool insecure = false;                    // without TLS also where other machines can connect
  CallAuthorizer::Options authorizer = {};  // that all calls come by
  ConnectionGuardMetrics* connection_metrics = nullptr;  // outlives the server; null: nobody counts
  ControlService* control = nullptr;  // served here, too; outlives the server. Null: it is not
};

class GrpcServer {
 public:
  // Borrowed: the service outlives the server. FailedPrecondition for an address that wants TLS, or
  // `insecure`.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           Service* service);
  ~GrpcServer();  // Shutdown() at once

  int port() const { return acceptor_->sockets().port(); }  // 0 for unix:
  // Where this process itself can connect.
  ListeningSockets::Address LocalAddress() const { return local_address_; }
  void SetServing(bool serving);
  // No new calls; cancels those still open after `grace`, then returns when all have ended.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  using Gate = grpc::experimental::ExternalConnectionAcceptor;
  struct Contracts;
  GrpcServer(std::unique_ptr<Contracts> contracts, std::unique_ptr<grpc::Server> server,
             std::unique_ptr<Gate> gate, ListeningSockets sockets,
             const GrpcServerOptions& options);

  const std::unique_ptr<Contracts> contracts_;  // outlive the server
  const std::unique_ptr<grpc::Server> server_;
  const std::unique_ptr<Gate> gate_;  // through which gRPC gets connections
  const ListeningSockets::Address local_address_;
  const std::unique_ptr<ConnectionGuard> guard_;  // of those that the acceptor takes
  const std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_GRPC_SERVER_H_
