// A TCP connection for a single stream, so that a client's disappearance can be simulated by
// breaking it without HTTP/2 frames.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_OWN_CONNECTION_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_OWN_CONNECTION_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "hydrant/v1/hydrant.grpc.pb.h"

namespace hydrant::load {

class OwnConnection {
 public:
  // Connects to host:port; blocks for the connection time. nullopt if the connection fails or the
  // address has another form.
  static std::optional<OwnConnection> Open(const std::string& address);
  OwnConnection(OwnConnection&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), stub_(std::move(other.stub_)) {}
  OwnConnection& operator=(OwnConnection&& other) noexcept;
  ~OwnConnection();

  v1::Hydrant::Stub& stub() { return *stub_; }
  void Break();

 private:
  OwnConnection(int socket, std::unique_ptr<v1::Hydrant::Stub> stub)
      : socket_(socket), stub_(std::move(stub)) {}

  int socket_;  // duplicate of the stub's socket, which gRPC closes
  std::unique_ptr<v1::Hydrant::Stub> stub_;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_OWN_CONNECTION_H_
