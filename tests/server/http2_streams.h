// Many server-streaming gRPC calls read by one thread at the cost of the system calls (nghttp2, no
// gRPC): it measures when the server's bytes reach the wire, without the cost of a client library.
//
// Not thread-safe. Plain HTTP/2 to a loopback port; protobuf messages stay bytes here.
#ifndef HYDRANT_TESTS_SERVER_HTTP2_STREAMS_H_
#define HYDRANT_TESTS_SERVER_HTTP2_STREAMS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

class Http2Streams {
 public:
  // `message` is valid during the call; `us`: steady clock when its last byte was read.
  using OnMessage = std::function<void(int stream, std::string_view message, int64_t us)>;

  // Aborts if the port does not listen, which is an error of the benchmark.
  Http2Streams(int port, int num_connections, OnMessage on_message);
  ~Http2Streams();

  // Calls `method` ("/package.Service/Method") with one message; calls are spread over the
  // connections round-robin. Returns the stream's number, counted from 0.
  int Call(const std::string& method, const std::string& message);

  // Reads until every call has ended. Returns how many did not end with grpc-status 0.
  int ReadAll();

 private:
  class Connection;
  const OnMessage on_message_;
  std::vector<std::unique_ptr<Connection>> connections_;
  int num_streams_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_HTTP2_STREAMS_H_
