// A channel to the daemon, and waiting until it is ready. Thread safe.
#ifndef HYDRANT_CLIENT_CONNECTION_H_
#define HYDRANT_CLIENT_CONNECTION_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "client/access.h"
#include "hydrant/v1/hydrant.grpc.pb.h"

namespace hydrant {

class Connection {
 public:
  explicit Connection(std::string address, Access access = {});

  const std::string& address() const { return address_; }
  v1::Hydrant::Stub& stub() { return *stub_; }
  // Polls the standard health service until SERVING. DEADLINE_EXCEEDED after `seconds`, with the
  // message of the last attempt (DescribeError).
  grpc::Status WaitUntilServing(double seconds);
  // Called after a stream was lost: waits for a connection, at most `seconds`.
  void Reconnect(double seconds);

 private:
  std::string address_;
  const Access access_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Hydrant::Stub> stub_;
};

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_CONNECTION_H_
