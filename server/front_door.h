// Which new connections gRPC gets, and when. A connection costs gRPC as much as its first bytes ask
// for, and gRPC reads all of them before it answers anybody else: so only a few are new to it at a
// time, and those that come faster wait in front of it, whoever brings least first.
//
// Bookkeeping alone: no socket, no clock. Not thread safe.
#ifndef HYDRANT_SERVER_FRONT_DOOR_H_
#define HYDRANT_SERVER_FRONT_DOOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hydrant {

class FrontDoor {
 public:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    int fd;
    std::string network;  // as from NetworkOf()
    Clock::time_point since;
    Clock::time_point until;  // at least
    uint64_t unread_bytes = 0;
  };

  // Whether one more of the network may be new to gRPC: none while it is full.
  bool HasRoom(const std::string& network) const;
  void SetFull(bool is_full) { is_full_ = is_full; }
  bool IsFull() const { return is_full_; }
  // One is handed on, and it is new no longer.
  void Enter(const std::string& network);
  void Settle(const std::string& network);

  void Add(Waiting waiting) { waiting_.push_back(std::move(waiting)); }
  bool AnyWaiting() const { return !waiting_.empty(); }
  bool AnyWaitingOf(const std::string& network) const;
  // Those that wait, to be closed: nothing is left.
  std::vector<Waiting> TakeAll();

  // Takes out those that may be handed on now (each of them has entered), and those that are to be
  // closed: they have waited for too long, or too many wait and they bring most.
  struct Next {
    std::vector<Waiting> enter, refuse;
    bool lacks_room = false;  // one waits for nothing else
  };
  // `unread_bytes`: of a descriptor. `is_free`: nothing but room keeps it back.
  Next Choose(Clock::time_point now, const std::function<uint64_t(int fd)>& unread_bytes,
              const std::function<bool(const Waiting&)>& is_free);

 private:
  std::unordered_map<std::string, size_t> new_;  // by network; none is 0
  size_t num_new_ = 0;
  bool is_full_ = false;
  std::vector<Waiting> waiting_;  // those that came first in front
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_FRONT_DOOR_H_
