// Ends connections that break a rule (connection_rules.h) which no well-behaved client breaks. gRPC
// 1.51 lets one connection use all memory. The kernel counts a connection's bytes, gRPC its calls:
// the guard compares both while bytes arrive. It passes new connections to gRPC only as fast as
// gRPC reads their first bytes (connection_queue.h).
//
// Runs its own thread, which sleeps without traffic except for a check of all connections once a
// second. TCP only: clients of a unix socket are trusted. Thread safe.
#ifndef HYDRANT_SERVER_NET_CONNECTION_GUARD_H_
#define HYDRANT_SERVER_NET_CONNECTION_GUARD_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/mutex.h"
#include "server/net/connection_backoff.h"
#include "server/net/connection_queue.h"
#include "server/net/connection_rules.h"
#include "server/net/log_rate_limiter.h"
#include "server/net/socket_calls.h"
#include "server/net/socket_pair.h"

namespace hydrant {

// Ended connections by the rule that they broke; all ports together.
struct ConnectionGuardMetrics {
  std::array<std::atomic<uint64_t>, kNumConnectionRules> ended{};
};

class ConnectionGuard {
 public:
  // `take` gets each socket and owns it; called in Take() or on the guard's thread. `metrics`
  // outlives the guard; null: no counters.
  ConnectionGuard(const ConnectionLimits& limits, ConnectionGuardMetrics* metrics,
                  std::function<void(int fd)> take);
  ~ConnectionGuard() { Stop(); }
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  // Takes a new socket. The guard owns it until it calls `take`, and watches it until it is closed.
  // It calls `take` immediately, with two exceptions: while gRPC has many new connections to read,
  // the connection waits for a place; after a connection from the same network was ended, it waits
  // until gRPC has freed that one.
  void Take(int fd);
  // Stops watching, and closes sockets that were not passed on. Not from two threads, nor
  // concurrently with Take().
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    ino_t inode = 0;  // tells whether the descriptor is still this connection's
    SocketPair pair;
    int64_t id = 0;             // gRPC's socket id; 0: not known yet
    uint64_t seen_bytes = 0;    // bytes that gRPC had read at the last query of its calls
    uint64_t unseen_bytes = 0;  // bytes that gRPC has read since then
    bool has_unread = false;    // the kernel has bytes that gRPC has not read
    Clock::time_point seen_at;
    // time of the next query, even without bytes
    Clock::time_point again_at = Clock::time_point::max();
    Clock::time_point new_since;
    bool is_new = true;  // as in connection_queue.h: gRPC has not processed its first bytes
    ConnectionRecord record = {};
  };

  // An ended connection with calls that gRPC has not freed yet.
  struct Ended {
    int64_t id;
    std::string network;
    double held_bytes;
    bool holds_others_up;  // new connections of its network wait until it is freed
  };

  void Run();
  void PollReady();
  void Watch(int fd, const SocketPair& pair) HYDRANT_REQUIRES(mutex_);
  void AdmitWaiting();
  // Whether the waiting connection may enter as soon as there is room for a new one.
  bool IsFree(const ConnectionQueue::Waiting& waiting, Clock::time_point now) const;
  void Refuse(const ConnectionQueue::Waiting& waiting);
  void EndSlowStarts(Clock::time_point now) HYDRANT_REQUIRES(mutex_);
  // Reads the kernel's byte counters of the connection. False: the connection has been closed.
  bool Measure(int fd, Watched* connection);
  // Asks gRPC about the calls of the connections that are due, and then of those with the most
  // unseen bytes, until all connections together have few unseen bytes.
  void QueryBusy() HYDRANT_REQUIRES(mutex_);
  // Asks gRPC about the connection's calls and judges it. False: it is closed, or was ended.
  bool QueryCalls(int fd, Watched* connection) HYDRANT_REQUIRES(mutex_);
  bool IsDue(const Watched& connection, Clock::time_point now) const;
  // Updates whether the connection counts as new.
  void Place(Watched* connection, Clock::time_point now) HYDRANT_REQUIRES(mutex_);
  // While all connections together hold too much memory: ends those that hold the most.
  void EndLargest() HYDRANT_REQUIRES(mutex_);
  void FindIds() HYDRANT_REQUIRES(mutex_);
  void End(int fd, const Watched& connection, ConnectionRule rule) HYDRANT_REQUIRES(mutex_);
  void Forget(int fd) HYDRANT_REQUIRES(mutex_);

  const ConnectionLimits limits_;
  ConnectionGuardMetrics* const metrics_;
  Mutex mutex_;
  // By descriptor. A closed connection stays for a moment, or until its number is reused.
  std::unordered_map<int, Watched> watched_ HYDRANT_GUARDED_BY(mutex_);
  std::unordered_set<int> busy_ HYDRANT_GUARDED_BY(mutex_);  // descriptors to check
  Clock::time_point next_round_{};                           // used by the guard's thread only
  bool has_found_ids_ = false;  // in the current check; guard's thread only
  SocketIds ids_;               // guard's thread only
  LogRateLimiter ended_log_;    // guard's thread only
  LogRateLimiter refused_log_;  // guard's thread only
  ConnectionBackoff backoff_ HYDRANT_GUARDED_BY(mutex_);
  ConnectionQueue queue_ HYDRANT_GUARDED_BY(mutex_);
  std::deque<Ended> ended_;  // in the expected order of being freed; guard's thread only
  const std::function<void(int fd)> take_;
  const int epoll_fd_, stop_fd_;
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_CONNECTION_GUARD_H_
