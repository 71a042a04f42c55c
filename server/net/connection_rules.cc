#include "server/net/connection_rules.h"

#include <algorithm>

namespace hydrant {
namespace {

// Good clients' calls that have ended and are not freed yet, on top of those that may be open.
constexpr uint64_t kEndingCalls = 500;
// gRPC counts as failed what ran into its deadline, and what was refused for its token or method:
// of clients that mean well, and try again at once.
constexpr double kFailedCallsPerSecond = 10'000;
// Messages of the largest size that may be on their way at a time; smaller ones are as many more.
constexpr uint64_t kUnfinishedMessages = 16;
// What was on its way to calls that were refused in the middle of a message.
constexpr double kLateBytes = 8 << 20;
// Pings of a client that only waits. A header block can be continued as slowly.
constexpr double kIdleBytesPerSecond = 1 << 10;
// WINDOW_UPDATEs and a ping, in records of their own, for each message that the client has got...
constexpr double kBytesPerAnswer = 256;
// ...and for the frames of large ones. The answers to pings explain as little of the pings.
constexpr double kBytesPerByteSent = 1.0 / 16;
// Of gRPC and of this server for a call without a message.
constexpr double kBytesPerCall = 32 << 10;

// Of a message on the wire, with frames and records around it.
double WireBytes(const ConnectionLimits& limits) {
  return static_cast<double>(limits.max_message_bytes) * 9 / 8;
}

// The counters are read one after another: a call may have ended that had not begun.
uint64_t Less(uint64_t from, uint64_t what) { return from - std::min(from, what); }

double More(uint64_t from, uint64_t to) { return to - static_cast<double>(from); }

uint64_t EndedOf(const SocketCalls& calls) { return calls.succeeded + calls.failed; }

double Explained(const ConnectionLimits& limits, const ConnectionCounts& last,
                 const ConnectionCounts& now) {
  const double headers = static_cast<double>(limits.max_metadata_bytes) * 2;
  return More(last.calls.started, now.calls.started) * headers +
         More(last.calls.messages_received, now.calls.messages_received) * WireBytes(limits) +
         // One that has ended may have left its message unfinished.
         More(EndedOf(last.calls), EndedOf(now.calls)) * WireBytes(limits) +
         More(last.calls.messages_sent, now.calls.messages_sent) * kBytesPerAnswer +
         More(last.bytes_sent, now.bytes_sent) * kBytesPerByteSent;
}

}  // namespace

const char* ConnectionRuleName(ConnectionRule rule) {
  constexpr const char* kNames[kNumConnectionRules] = {"open_calls", "unexplained_bytes",
                                                       "failed_calls", "memory", "slow_start"};
  return kNames[static_cast<int>(rule)];
}

ConnectionRecord::Verdict ConnectionRecord::Judge(const ConnectionLimits& limits,
                                                  const ConnectionCounts& now,
                                                  std::chrono::duration<double> elapsed) {
  // What is explained beyond what has come explains nothing that comes later.
  unexplained_ =
      std::max(0.0, unexplained_ + More(last_.bytes_received, now.bytes_received) -
                        Explained(limits, last_, now) - elapsed.count() * kIdleBytesPerSecond);
  failed_ = std::max(0.0, failed_ + More(last_.calls.failed, now.calls.failed) -
                              More(last_.calls.succeeded, now.calls.succeeded) -
                              elapsed.count() * kFailedCallsPerSecond);
  last_ = now;
  const uint64_t open = Less(now.calls.started, EndedOf(now.calls));
  const uint64_t most_open = limits.max_streams + kEndingCalls;
  if (limits.max_streams > 0 && open > most_open)
    return {.holds = false, .broken = ConnectionRule::kOpenCalls};
  // All that may be open may be taken back at once.
  if (limits.max_streams > 0 && failed_ > static_cast<double>(most_open))
    return {.holds = false, .broken = ConnectionRule::kFailedCalls};
  const double unfinished =
      static_cast<double>(std::clamp<uint64_t>(open, 1, kUnfinishedMessages)) * WireBytes(limits);
  if (unexplained_ > unfinished + kLateBytes)
    return {.holds = false, .broken = ConnectionRule::kUnexplainedBytes};
  return {};
}

uint64_t ConnectionRecord::calls_without_message() const {
  return std::min(Less(last_.calls.started, EndedOf(last_.calls)),
                  Less(last_.calls.started, last_.calls.messages_received));
}

double ConnectionRecord::held_bytes() const {
  return unexplained_ + static_cast<double>(calls_without_message()) * kBytesPerCall;
}

bool ConnectionRecord::has_begun() const {
  return last_.calls.messages_received > 0 || EndedOf(last_.calls) > 0;
}

}  // namespace hydrant
