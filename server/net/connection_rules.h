// Rules that limit a connection, based on byte and call counters, because gRPC shows neither its
// frames nor its memory. No well-behaved client breaks them, and a connection within the rules
// holds a bounded amount of memory.
//
// Plain data and arithmetic: no socket, no clock.
#ifndef HYDRANT_SERVER_NET_CONNECTION_RULES_H_
#define HYDRANT_SERVER_NET_CONNECTION_RULES_H_

#include <chrono>
#include <cstdint>

#include "server/net/socket_calls.h"

namespace hydrant {

struct ConnectionLimits {
  uint64_t max_streams = 0;         // announced to the client; 0: any number
  uint64_t max_message_bytes = 0;   // per message
  uint64_t max_metadata_bytes = 0;  // per call
  double max_held_bytes = 0;        // sum of ConnectionRecord::held_bytes() over all connections
};

// Counters of a connection since its start.
struct ConnectionCounts {
  uint64_t bytes_received = 0;  // as counted by the kernel: with TLS
  uint64_t bytes_sent = 0;
  SocketCalls calls;
};

enum class ConnectionRule {
  // Calls that gRPC has not freed. Cancelled calls count until gRPC ends them, which it does not do
  // while more arrive.
  kOpenCalls,
  // Bytes that belong to no ended call, no received message and no answer: endless headers or
  // pings, and messages that are never completed.
  kUnexplainedBytes,
  // Many more calls cancelled by the client than completed.
  kFailedCalls,
  // All connections together hold too much memory, and this one the most.
  kMemory,
  // A new connection has calls without messages while other connections wait for its place
  // (connection_queue.h).
  kSlowStart,
};
inline constexpr int kNumConnectionRules = 5;
// "open_calls"
const char* ConnectionRuleName(ConnectionRule rule);

// State of one connection.
class ConnectionRecord {
 public:
  // Updates the record with current counters, `elapsed` after the last update.
  struct Verdict {
    bool holds = true;                                   // no rule is broken
    ConnectionRule broken = ConnectionRule::kOpenCalls;  // valid if !holds
  };
  Verdict Judge(const ConnectionLimits& limits, const ConnectionCounts& now,
                std::chrono::duration<double> elapsed);
  // Estimated memory held for the connection without use: unexplained bytes, and calls without
  // a message.
  double held_bytes() const;
  uint64_t calls_without_message() const;  // open calls only
  // Whether the connection has sent a message, or one of its calls has ended.
  bool has_begun() const;

 private:
  ConnectionCounts last_;
  double unexplained_ = 0;  // bytes
  double failed_ = 0;       // calls: failed minus succeeded and allowed
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_CONNECTION_RULES_H_
