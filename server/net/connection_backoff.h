// Remembers for a while the networks of connections that had to be ended: new connections from
// there wait a little, which limits repeated abuse. They are not refused, because behind a load
// balancer all clients share one address. Not thread safe.
#ifndef HYDRANT_SERVER_NET_CONNECTION_BACKOFF_H_
#define HYDRANT_SERVER_NET_CONNECTION_BACKOFF_H_

#include <chrono>
#include <string>
#include <unordered_map>

namespace hydrant {

class ConnectionBackoff {
 public:
  using Clock = std::chrono::steady_clock;

  // `network` as from NetworkOf().
  void Add(const std::string& network, Clock::time_point now);
  // The delay for a new connection of the network; 0: none.
  std::chrono::milliseconds Wait(const std::string& network, Clock::time_point now) const;
  // Whether connections of any network would wait.
  bool Any(Clock::time_point now) const;

 private:
  std::unordered_map<std::string, Clock::time_point> forgotten_at_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_CONNECTION_BACKOFF_H_
