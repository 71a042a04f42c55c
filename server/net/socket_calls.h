// gRPC's counters of each connection, from channelz within this process. gRPC has no other
// interface that relates calls to connections.
//
// Takes no lock that gRPC holds while it works: a query takes microseconds even if gRPC is busy.
#ifndef HYDRANT_SERVER_NET_SOCKET_CALLS_H_
#define HYDRANT_SERVER_NET_SOCKET_CALLS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_set>

#include "server/net/socket_pair.h"

namespace hydrant {

// Counters since the start of the connection.
struct SocketCalls {
  uint64_t started = 0;
  // Calls that ended and were freed: with all of the server's messages and status sent, or not.
  uint64_t succeeded = 0, failed = 0;
  uint64_t messages_received = 0;
  uint64_t messages_sent = 0;
};

// nullopt: gRPC has closed the connection, or never had it. `id` as from SocketIds.
std::optional<SocketCalls> CallsOfSocket(int64_t id);

// gRPC's ids of connections. A connection gets one when its handshake is done. Use it from
// one thread.
class SocketIds {
 public:
  // Ids that are new since the last call, of all servers of the process, by the socket's two ends.
  std::map<SocketPair, int64_t> New();

 private:
  std::unordered_set<int64_t> known_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_SOCKET_CALLS_H_
