// A small HTTP server beside gRPC, for scrapes and probes: GET, short answers. One thread of its
// own serves all connections as their bytes come, so a client that is slow, or silent, holds nobody
// up. A connection has one request and a few seconds; of more than 64 the oldest is closed. Thread
// safe.
#ifndef HYDRANT_SERVER_OBSERVE_HTTP_SERVER_H_
#define HYDRANT_SERVER_OBSERVE_HTTP_SERVER_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant {

struct HttpAnswer {
  int status = 200;
  std::string body = {};
  std::string content_type = "text/plain; charset=utf-8";
};

class HttpServer {
 public:
  // By path. Called on the server's thread: what takes long holds the others up.
  using Pages = std::map<std::string, std::function<HttpAnswer()>>;

  // Listens when it returns. `listen` is host:port, with port 0 for any; an empty host is every
  // address. InvalidArgument where it is not that, Unavailable where it cannot be had. `time` is
  // what a connection gets from its beginning to the last byte of its answer.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& listen, Pages pages,
      std::chrono::milliseconds time = std::chrono::seconds(5));
  ~HttpServer();  // ends what is open and joins the thread

  // host:port, the port being the real one.
  const std::string& address() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_HTTP_SERVER_H_
