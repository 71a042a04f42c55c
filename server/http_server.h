// A small HTTP server beside gRPC, for scrapes and probes: GET, short answers, a few threads of its
// own. A connection serves one request and is closed, so that idle ones cannot hold the threads.
// Thread safe.
#ifndef HYDRANT_SERVER_HTTP_SERVER_H_
#define HYDRANT_SERVER_HTTP_SERVER_H_

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
  // By path. Called on the server's threads, several at once.
  using Pages = std::map<std::string, std::function<HttpAnswer()>>;

  // Listens when it returns. `listen` is host:port, with port 0 for any; an empty host is every
  // address. InvalidArgument where it is not that, Unavailable where it cannot be had.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& listen, Pages pages);
  ~HttpServer();  // ends what is open and joins the threads

  // host:port, the port being the real one.
  const std::string& address() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_HTTP_SERVER_H_
