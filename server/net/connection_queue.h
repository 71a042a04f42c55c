// Decides which new connections gRPC gets, and when. The first bytes of a connection may start many
// calls, and gRPC reads all of them before it serves other connections. So gRPC gets only a few new
// connections at a time; the others wait, and the one with the fewest unread bytes enters first.
//
// Bookkeeping only: it uses no socket and no clock. Not thread safe.
#ifndef HYDRANT_SERVER_NET_CONNECTION_QUEUE_H_
#define HYDRANT_SERVER_NET_CONNECTION_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hydrant {

class ConnectionQueue {
 public:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    int fd;
    std::string network;  // as from NetworkOf()
    Clock::time_point since;
    Clock::time_point until;  // may not enter before
    uint64_t unread_bytes = 0;
  };

  // Whether gRPC may get one more new connection of the network. False while IsFull().
  bool HasRoom(const std::string& network) const;
  void SetFull(bool is_full) { is_full_ = is_full; }
  bool IsFull() const { return is_full_; }
  // Enter(): a new connection of the network was passed to gRPC. Settle(): one of them is no
  // longer new.
  void Enter(const std::string& network);
  void Settle(const std::string& network);

  void Add(Waiting waiting) { waiting_.push_back(std::move(waiting)); }
  bool AnyWaiting() const { return !waiting_.empty(); }
  bool AnyWaitingOf(const std::string& network) const;
  // Removes and returns all waiting connections, for the caller to close.
  std::vector<Waiting> TakeAll();

  // Removes and returns the connections that the caller passes to gRPC now (Enter() was called for
  // each), and those that it closes: they have waited too long, or too many wait and these have the
  // most unread bytes.
  struct Next {
    std::vector<Waiting> enter, refuse;
    bool lacks_room = false;  // a connection waits only for room
  };
  // unread_bytes(fd) returns the number of unread bytes. is_free(waiting): the connection waits
  // only for room.
  Next Choose(Clock::time_point now, const std::function<uint64_t(int fd)>& unread_bytes,
              const std::function<bool(const Waiting&)>& is_free);

 private:
  std::unordered_map<std::string, size_t> new_;  // new connections by network; no entry is 0
  size_t num_new_ = 0;
  bool is_full_ = false;
  std::vector<Waiting> waiting_;  // in order of arrival
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_CONNECTION_QUEUE_H_
