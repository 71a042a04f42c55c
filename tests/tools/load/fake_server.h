// A server of hydrant.v1 without a model, which sends to every stream at a fixed pace at low cost,
// so that the client is the bottleneck. For benchmarks.
#ifndef HYDRANT_TESTS_TOOLS_LOAD_FAKE_SERVER_H_
#define HYDRANT_TESTS_TOOLS_LOAD_FAKE_SERVER_H_

#include <memory>

namespace hydrant::load {

struct FakePace {
  double messages_per_second = 5.0;  // of each stream
  int tokens_per_message = 5;
};

// Serves until it is destroyed. Each stream gets its max_tokens, then its usage.
class FakeServer {
 public:
  explicit FakeServer(FakePace pace);
  ~FakeServer();

  int port() const;  // on 127.0.0.1

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TESTS_TOOLS_LOAD_FAKE_SERVER_H_
