// What a connection may bring before it is ended: rules over counters that everybody has, for a
// library that shows neither its frames nor what it holds of them. No client breaks them that means
// well, and whoever breaks none holds a bounded part of the memory, connection by connection.
//
// Plain data and arithmetic: no socket, no clock.
#ifndef HYDRANT_SERVER_NET_CONNECTION_RULES_H_
#define HYDRANT_SERVER_NET_CONNECTION_RULES_H_

#include <chrono>
#include <cstdint>

#include "server/net/socket_calls.h"

namespace hydrant {

struct ConnectionLimits {
  uint64_t max_streams = 0;         // that its client was told of; 0: any number
  uint64_t max_message_bytes = 0;   // of one
  uint64_t max_metadata_bytes = 0;  // of a call
  double max_held_bytes = 0;        // ConnectionRecord::held_bytes() of all connections
};

// Of a connection, since it began.
struct ConnectionCounts {
  uint64_t bytes_received = 0;  // as the kernel counts them: TLS included
  uint64_t bytes_sent = 0;
  SocketCalls calls;
};

enum class ConnectionRule {
  // Calls that gRPC has not freed. Those that are taken back count until it comes to end them, and
  // while more come it does not.
  kOpenCalls,
  // Bytes that belong to no call that has ended, to no message that has come, and to no answer:
  // headers and pings without end, and messages that are never completed.
  kUnexplainedBytes,
  // Calls that its client takes back, and far more than come to an end.
  kFailedCalls,
  // All connections together hold more than they may, and this one the most of them.
  kMemory,
  // The connection began with calls whose messages do not come, while other connections wait for
  // its place (front_door.h).
  kSlowStart,
};
inline constexpr int kNumConnectionRules = 5;
// "open_calls"
const char* ConnectionRuleName(ConnectionRule rule);

// Of one connection.
class ConnectionRecord {
 public:
  // Takes what its counters say now, `elapsed` after the last time.
  struct Verdict {
    bool holds = true;                                   // each rule
    ConnectionRule broken = ConnectionRule::kOpenCalls;  // where one does not
  };
  Verdict Judge(const ConnectionLimits& limits, const ConnectionCounts& now,
                std::chrono::duration<double> elapsed);
  // About so much memory may be held for it that nobody can use, as far as its counters tell: for
  // bytes that nothing explains, and for calls whose message has not come.
  double held_bytes() const;
  uint64_t calls_without_message() const;  // open calls only
  // Whether the connection has sent a message, or one of its calls has ended.
  bool has_begun() const;

 private:
  ConnectionCounts last_;
  double unexplained_ = 0;  // bytes
  double failed_ = 0;       // calls, on balance
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_CONNECTION_RULES_H_
