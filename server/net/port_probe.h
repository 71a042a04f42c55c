// Checks whether the gRPC port answers new connections: connects at intervals like a client, and
// waits for the first frame of HTTP/2 or record of TLS. A server that serves only its old
// connections passes all other checks. Runs its own thread; thread safe.
#ifndef HYDRANT_SERVER_NET_PORT_PROBE_H_
#define HYDRANT_SERVER_NET_PORT_PROBE_H_

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "server/net/listening_sockets.h"

namespace hydrant {

enum class PortState {
  kAnswers,
  kRefuses,  // closes new connections: it has reached its limit
  kSilent,   // did not answer, several times in a row
};

class PortProbe {
 public:
  struct Options {
    std::chrono::milliseconds interval{2'000};  // between two attempts
    std::chrono::milliseconds timeout{5'000};   // of an attempt
    int silent_after = 3;                       // attempts without an answer
    bool tls = false;                           // the port uses TLS
  };
  // Starts with kAnswers. `address`: of a listening socket of this machine.
  PortProbe(const ListeningSockets::Address& address, const Options& options);
  explicit PortProbe(const ListeningSockets::Address& address) : PortProbe(address, Options()) {}
  ~PortProbe() { Stop(); }
  PortProbe(const PortProbe&) = delete;
  PortProbe& operator=(const PortProbe&) = delete;

  PortState state() const { return state_; }
  // Stops checking, so that a closed port is not reported as silent.
  void Stop();

 private:
  void Run();
  PortState Try() const;

  const ListeningSockets::Address address_;
  const Options options_;
  const std::string hello_;  // bytes sent first
  std::atomic<PortState> state_{PortState::kAnswers};
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_PORT_PROBE_H_
