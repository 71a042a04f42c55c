// Ends connections that break a rule which no client breaks that means well (connection_rules.h).
// gRPC 1.51 lets one connection take all the memory there is. The kernel counts the bytes that a
// connection brings, gRPC its calls: the guard looks at both while bytes come. New connections it
// hands on as fast as gRPC gets done with them (front_door.h).
//
// A thread of its own, which sleeps while nothing comes but for a look at all once a second. TCP
// alone: who may open a unix socket is trusted. Thread safe.
#ifndef HYDRANT_SERVER_CONNECTION_GUARD_H_
#define HYDRANT_SERVER_CONNECTION_GUARD_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/complaints.h"
#include "server/connection_rules.h"
#include "server/ended_clients.h"
#include "server/front_door.h"
#include "server/socket_calls.h"
#include "server/socket_ends.h"

namespace hydrant {

// Connections that were ended, by the rule that they broke; of all ports together.
struct ConnectionGuardMetrics {
  std::array<std::atomic<uint64_t>, kNumConnectionRules> ended{};
};

class ConnectionGuard {
 public:
  // `take` gets each socket, and owns it; from Take() or from the guard's thread. `metrics`
  // outlives the guard; null: nobody counts.
  ConnectionGuard(const ConnectionLimits& limits, ConnectionGuardMetrics* metrics,
                  std::function<void(int fd)> take);
  ~ConnectionGuard() { Stop(); }
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  // A new socket, which it owns until `take` has it and watches until it is closed. It is handed on
  // at once; a little later where gRPC has many new ones to read, and where a connection from there
  // had to be ended, when that one is freed.
  void Take(int fd);
  // Looks no more, and closes what it has not handed on. Not from two threads, nor beside Take().
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    ino_t inode = 0;  // whether the descriptor is still this connection's
    SocketEnds ends;
    int64_t id = 0;             // gRPC's; 0: not known yet
    uint64_t seen_bytes = 0;    // of those that gRPC had read when it was asked last
    uint64_t unseen_bytes = 0;  // that it has read since
    bool has_unread = false;    // it has not read all that has come
    Clock::time_point seen_at;
    Clock::time_point again_at = Clock::time_point::max();  // to ask, whatever has come
    Clock::time_point new_since;
    bool is_new = true;  // by front_door.h: gRPC has not got done with its first bytes
    ConnectionRecord record = {};
  };

  // Ended, and gRPC still has its calls: it takes its time to free them.
  struct Ended {
    int64_t id;
    std::string network;
    double held_bytes;
    bool holds_others_up;  // of its network
  };

  void Run();
  void LookAtReady();
  void Watch(int fd, const SocketEnds& ends);
  void LetIn();
  // Whether nothing but room for new ones keeps it back.
  bool IsFree(const FrontDoor::Waiting& waiting, Clock::time_point now) const;
  void Refuse(const FrontDoor::Waiting& waiting);
  void EndSlowStarts(Clock::time_point now);
  // Takes what the kernel counts. False: the connection has gone.
  bool Measure(int fd, Watched* connection);
  // Asks gRPC about those that are due, and about those that it has read most of, until little is
  // left of which it was not asked.
  void AskAboutBusy();
  // False: it is over.
  bool Ask(int fd, Watched* connection);
  bool IsDue(const Watched& connection, Clock::time_point now) const;
  // Whether it is new, or no longer.
  void Place(Watched* connection, Clock::time_point now);
  // While all hold too much together, those that hold most.
  void EndLargest();
  void FindIds();
  void End(int fd, const Watched& connection, ConnectionRule rule);
  void Forget(int fd);

  const ConnectionLimits limits_;
  ConnectionGuardMetrics* const metrics_;
  std::mutex mutex_;
  // By descriptor. One that was closed stays for a moment, or until its number is another's. Under
  // mutex_.
  std::unordered_map<int, Watched> watched_;
  std::unordered_set<int> busy_;    // descriptors to be looked at; under mutex_
  Clock::time_point next_round_{};  // the thread's
  bool has_found_ids_ = false;      // since it looks; the same
  SocketIds ids_;                   // the same
  Complaints complaints_;           // the same
  Complaints refusals_;             // the same
  EndedClients clients_;            // under mutex_
  FrontDoor door_;                  // under mutex_
  std::deque<Ended> ended_;         // those that are freed first in front; the thread's
  const std::function<void(int fd)> take_;
  const int epoll_fd_, stop_fd_;
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_CONNECTION_GUARD_H_
