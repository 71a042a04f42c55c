// A real Redis of a test's own, on a socket in a folder of its own; nothing of it is left. Not
// thread safe.
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
  // It is killed and forgets all; Start() brings a new one up at the same place.
  void Stop() { process_.reset(); }
  void Start();
  // It runs, or does not go on until it is told to.
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
