// A small HTTP server beside gRPC, for scrapes and probes: GET, short answers. Its own thread
// serves all connections without blocking, so a slow or silent client does not delay the others.
// A connection has one request and a few seconds; beyond 64 connections the oldest is closed.
// Thread safe.
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
  // By path. Called on the server's thread: a slow page delays all others.
  using Pages = std::map<std::string, std::function<HttpAnswer()>>;

  // Listens when it returns. `listen` is host:port; port 0 is any free port, an empty host all
  // addresses. InvalidArgument where it is malformed, Unavailable where it cannot be bound. `time`
  // limits a connection, from its start to the last byte of its answer.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& listen, Pages pages,
      std::chrono::milliseconds time = std::chrono::seconds(5));
  ~HttpServer();  // closes open connections and joins the thread

  // host:port, with the actual port.
  const std::string& address() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_HTTP_SERVER_H_
