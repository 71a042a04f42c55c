// A real Redis for one test, on a socket in its own folder, removed with it. Not thread safe.
#ifndef HYDRANT_TESTS_REDIS_SERVER_H_
#define HYDRANT_TESTS_REDIS_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/subprocess.h"

namespace hydrant {

class RedisServer {
 public:
  static bool IsInstalled();
  // flags: of redis-server, as {"--requirepass", "x"}. REQUIRES: IsInstalled()
  explicit RedisServer(std::vector<std::string> flags = {});
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  const std::string& socket() const { return socket_; }
  std::string uri() const { return "unix:" + socket_; }
  // Stop() kills the server, and its data is lost; Start() starts a new one at the same address.
  void Stop() { process_.reset(); }
  void Start();
  // Sends a signal, such as SIGSTOP and SIGCONT.
  void Signal(int signal) { process_->Signal(signal); }

 private:
  const std::vector<std::string> flags_;
  std::string folder_, socket_;
  std::unique_ptr<Subprocess> process_;
};

#define HYDRANT_SKIP_WITHOUT_REDIS()          \
  if (!::hydrant::RedisServer::IsInstalled()) \
  GTEST_SKIP() << "there is no redis-server here (scripts/setup --tests)"

}  // namespace hydrant

#endif  // HYDRANT_TESTS_REDIS_SERVER_H_
