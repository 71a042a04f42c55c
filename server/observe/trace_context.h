// W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context-1/): a call's trace id and parent
// span from its headers. Plain data and functions; any thread may call.
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
  std::string state;     // `tracestate`, passed on unchanged
};

// nullopt: malformed, treated as absent. The known fields of a later version are used.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

// The headers joined in their order; "" where they are not a valid list of states.
std::string JoinTracestate(const std::vector<std::string_view>& headers);

// Two lowercase hexadecimal digits per byte.
std::string ToHex(std::string_view bytes);

// Random, and not all zero.
std::string NewTraceId();
std::string NewSpanId();

// Whether a trace is in the sampled share `ratio`, [0, 1]. Depends on the id only, like
// OpenTelemetry's TraceIdRatioBased.
bool IsAmong(double ratio, std::string_view trace_id);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACE_CONTEXT_H_
