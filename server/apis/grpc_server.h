// The gRPC server: one address, all contracts, the standard health service and reflection. The port
// opens in Start(), with health NOT_SERVING. An Acceptor accepts connections and passes their
// sockets to gRPC. Thread safe.
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
  // A connection that does not answer a ping within the timeout is closed, and its requests
  // are cancelled.
  int keepalive_time_ms = 10'000;
  int keepalive_timeout_ms = 5'000;
  DefaultCache default_cache = {};    // for requests to this address
  int handshake_timeout_ms = 10'000;  // for a new connection's HTTP/2 handshake
  // After this age a connection gets a GOAWAY, and its client opens another; open streams may go on
  // for `grace`. Unset: unlimited. gRPC varies the age by a tenth.
  std::optional<std::chrono::milliseconds> max_connection_age = {};
  std::optional<std::chrono::milliseconds> max_connection_age_grace = {};
  int max_message_bytes = 16 << 20;   // received; a prompt of a million token ids fits
  int max_metadata_bytes = 8 << 10;   // the headers of a call
  int max_concurrent_streams = 2000;  // per connection; 0: any number
  // Limit for memory held by all connections without use (connection_rules.h).
  double max_held_bytes = 512 << 20;
  int max_connections = 0;                               // 0: any number
  std::shared_ptr<Certificates> certificates = nullptr;  // null: no TLS
  bool insecure = false;                    // no TLS, even where other machines can connect
  CallAuthorizer::Options authorizer = {};  // for all calls
  ConnectionGuardMetrics* connection_metrics = nullptr;  // outlives the server; null: no counters
  ControlService* control = nullptr;  // served here, too; outlives the server; null: not served
};

class GrpcServer {
 public:
  // Borrowed: the service outlives the server. FailedPrecondition for an address that requires TLS
  // or `insecure`.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           Service* service);
  ~GrpcServer();  // Shutdown() without grace

  int port() const { return acceptor_->sockets().port(); }  // 0 for unix:
  // The address for connections from this process.
  ListeningSockets::Address LocalAddress() const { return local_address_; }
  void SetServing(bool serving);
  // Refuses new calls, cancels open ones after `grace`, and returns when all have ended.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  using Gate = grpc::experimental::ExternalConnectionAcceptor;
  struct Contracts;
  GrpcServer(std::unique_ptr<Contracts> contracts, std::unique_ptr<grpc::Server> server,
             std::unique_ptr<Gate> gate, ListeningSockets sockets,
             const GrpcServerOptions& options);

  const std::unique_ptr<Contracts> contracts_;  // outlives the server
  const std::unique_ptr<grpc::Server> server_;
  const std::unique_ptr<Gate> gate_;  // passes connections to gRPC
  const ListeningSockets::Address local_address_;
  const std::unique_ptr<ConnectionGuard> guard_;  // checks the acceptor's connections
  const std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_GRPC_SERVER_H_
