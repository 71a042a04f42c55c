// The log line of an accepted request, written when it ends: text, or JSON fields with --log-format
// json (json_log.h).
#ifndef HYDRANT_SERVER_OBSERVE_REQUEST_LOG_H_
#define HYDRANT_SERVER_OBSERVE_REQUEST_LOG_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "scheduler/request.h"
#include "server/observe/trace_context.h"

namespace hydrant {

struct RequestRecord {
  std::string_view request_id;
  std::string_view policy;   // named by the request
  std::string_view tenant;   // "": no tenant
  std::string_view outcome;  // as in metrics: "stop", "cancelled", ...
  std::string_view
      reason;  // of a failure, as sent to the client: "DRAINING", ...; else the outcome
  const Usage* usage = nullptr;
  size_t samples = 1;                   // samples counted in `usage`
  const TraceContext* trace = nullptr;  // null: the request is not traced
};

// The policy of the request's cache, or the named one if it ended before its cache was planned.
inline std::string_view PolicyOf(const RequestRecord& record) {
  return record.usage->policy.empty() ? record.policy : record.usage->policy;
}

void LogRequest(const RequestRecord& record);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_REQUEST_LOG_H_
