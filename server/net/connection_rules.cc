#include "server/net/connection_rules.h"

#include <algorithm>

namespace hydrant {
namespace {

// Allowance for ended calls that gRPC has not freed yet, in addition to open calls.
constexpr uint64_t kEndingCalls = 500;
// gRPC counts calls past their deadline and calls refused for their token or method as failed.
// Well-behaved clients cause them too, and may retry immediately.
constexpr double kFailedCallsPerSecond = 10'000;
// Messages of the largest size that may be incomplete at a time; smaller messages may be more.
constexpr uint64_t kUnfinishedMessages = 16;
// Allowance for bytes in flight to calls that were refused in the middle of a message.
constexpr double kLateBytes = 8 << 20;
// Pings of an idle client. A header block can be continued at the same rate.
constexpr double kIdleBytesPerSecond = 1 << 10;
// WINDOW_UPDATEs and a ping, in records of their own, for each message sent to the client...
constexpr double kBytesPerAnswer = 256;
// ...and for the frames of large messages. Answers to pings explain equally few bytes of the pings.
constexpr double kBytesPerByteSent = 1.0 / 16;
// Memory of gRPC and of this server for a call without a message.
constexpr double kBytesPerCall = 32 << 10;

// Size of the largest message on the wire, with frames and TLS records.
double WireBytes(const ConnectionLimits& limits) {
  return static_cast<double>(limits.max_message_bytes) * 9 / 8;
}

// The counters are not read atomically: a call may be counted as ended before it is counted
// as started.
uint64_t Less(uint64_t from, uint64_t what) { return from - std::min(from, what); }

double More(uint64_t from, uint64_t to) { return to - static_cast<double>(from); }

uint64_t EndedOf(const SocketCalls& calls) { return calls.succeeded + calls.failed; }

double Explained(const ConnectionLimits& limits, const ConnectionCounts& last,
                 const ConnectionCounts& now) {
  const double headers = static_cast<double>(limits.max_metadata_bytes) * 2;
  return More(last.calls.started, now.calls.started) * headers +
         More(last.calls.messages_received, now.calls.messages_received) * WireBytes(limits) +
         // An ended call may have left its message incomplete.
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
  // The surplus of explained bytes is not carried over.
  unexplained_ =
      std::max(0.0, unexplained_ + More(last_.bytes_received, now.bytes_received) -
                        Explained(limits, last_, now) - elapsed.count() * kIdleBytesPerSecond);
  failed_ = std::max(0.0, failed_ + More(last_.calls.failed, now.calls.failed) -
                              More(last_.calls.succeeded, now.calls.succeeded) -
                              elapsed.count() * kFailedCallsPerSecond);
  last_ = now;
  const uint64_t open = Less(now.calls.started, EndedOf(now.calls));
  const uint64_t max_open = limits.max_streams + kEndingCalls;
  if (limits.max_streams > 0 && open > max_open)
    return {.holds = false, .broken = ConnectionRule::kOpenCalls};
  // All calls that may be open may be cancelled at once.
  if (limits.max_streams > 0 && failed_ > static_cast<double>(max_open))
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
