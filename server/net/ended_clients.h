// Where connections came from that had to be ended, for a while: what comes from there next waits a
// little. It could go on at once otherwise, as often as it connects. Never refused, for behind a
// balancer all clients have one address. Not thread safe.
#ifndef HYDRANT_SERVER_NET_ENDED_CLIENTS_H_
#define HYDRANT_SERVER_NET_ENDED_CLIENTS_H_

#include <chrono>
#include <string>
#include <unordered_map>

namespace hydrant {

class EndedClients {
 public:
  using Clock = std::chrono::steady_clock;

  // `network` as from NetworkOf().
  void Add(const std::string& network, Clock::time_point now);
  // How long a new connection from there waits; 0: not at all.
  std::chrono::milliseconds Wait(const std::string& network, Clock::time_point now) const;
  // Whether any would wait.
  bool Any(Clock::time_point now) const;

 private:
  std::unordered_map<std::string, Clock::time_point> forgotten_at_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_ENDED_CLIENTS_H_
