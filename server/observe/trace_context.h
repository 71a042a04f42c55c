// W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context-1/): the place of a call in a
// trace, as its headers say it. Plain data and functions; any thread may call.
#ifndef HYDRANT_SERVER_OBSERVE_TRACE_CONTEXT_H_
#define HYDRANT_SERVER_OBSERVE_TRACE_CONTEXT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

struct TraceContext {
  std::string trace_id;  // 16 bytes
  std::string span_id;   // 8 bytes
  bool sampled = false;  // its spans are recorded
  std::string state;     // `tracestate`, of those that have seen the trace; passed on as it came
};

// nullopt: it is none, and as good as absent. A later version is read as far as it is known.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

// The headers as one, in their order; "" where what they say is no list of states.
std::string JoinTracestate(const std::vector<std::string_view>& headers);

// Bytes as two lowercase digits each.
std::string ToHex(std::string_view bytes);

// Random, and not all zero.
std::string NewTraceId();
std::string NewSpanId();

// Whether a trace is among so many of all, [0, 1]: the same answer for everybody who is asked of
// its id, as OpenTelemetry's TraceIdRatioBased has it.
bool IsAmong(double ratio, std::string_view trace_id);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACE_CONTEXT_H_
