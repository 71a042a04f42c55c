// What gRPC counts of each connection that it serves, as its channelz says it in this process. gRPC
// tells nobody else which connection a call came by.
//
// Takes no lock that gRPC holds while it works: an answer takes microseconds, however busy gRPC is.
#ifndef HYDRANT_SERVER_NET_SOCKET_CALLS_H_
#define HYDRANT_SERVER_NET_SOCKET_CALLS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_set>

#include "server/net/socket_ends.h"

namespace hydrant {

// Since the connection began.
struct SocketCalls {
  uint64_t started = 0;
  // And all that gRPC had of them is freed: after all was sent that the server had to say, or not.
  uint64_t succeeded = 0, failed = 0;
  uint64_t messages_received = 0;
  uint64_t messages_sent = 0;
};

// nullopt: gRPC has closed it, or has never had it. `id` as from SocketIds.
std::optional<SocketCalls> CallsOfSocket(int64_t id);

// gRPC's numbers of connections. A connection has one when its handshake is done. Of one thread.
class SocketIds {
 public:
  // Those of all servers of the process that the last call did not have, by their ends.
  std::map<SocketEnds, int64_t> New();

 private:
  std::unordered_set<int64_t> known_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_SOCKET_CALLS_H_
