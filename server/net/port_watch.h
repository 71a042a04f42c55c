// Whether the gRPC port answers those who connect anew: this connects to it now and then as a
// client would, and waits for the first word of HTTP/2 or of TLS. A server that works for its old
// connections alone looks well from everywhere else. One thread of its own; thread safe.
#ifndef HYDRANT_SERVER_NET_PORT_WATCH_H_
#define HYDRANT_SERVER_NET_PORT_WATCH_H_

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "server/net/listening_sockets.h"

namespace hydrant {

enum class PortState {
  kAnswers,
  kRefuses,  // closes new connections at once: there are as many as it can have
  kSilent,   // says nothing, several times in a row
};

class PortWatch {
 public:
  struct Options {
    std::chrono::milliseconds interval{2'000};  // between two tries
    std::chrono::milliseconds timeout{5'000};   // of a try
    int silent_after = 3;                       // tries without an answer
    bool tls = false;                           // what the port speaks
  };
  // Begins with kAnswers. `address` is a listening socket's of this machine.
  PortWatch(const ListeningSockets::Address& address, const Options& options);
  explicit PortWatch(const ListeningSockets::Address& address) : PortWatch(address, Options()) {}
  ~PortWatch() { Stop(); }
  PortWatch(const PortWatch&) = delete;
  PortWatch& operator=(const PortWatch&) = delete;

  PortState state() const { return state_; }
  // Looks no more, so that a port that closes is not taken for a deaf one.
  void Stop();

 private:
  void Run();
  PortState Try() const;

  const ListeningSockets::Address address_;
  const Options options_;
  const std::string hello_;  // what it says
  std::atomic<PortState> state_{PortState::kAnswers};
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_PORT_WATCH_H_
