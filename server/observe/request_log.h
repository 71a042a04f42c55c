// The one line that the log has for a request that was accepted, when it has ended: words for
// people, or fields for machines where --log-format json asks for them (json_log.h).
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
  std::string_view policy;   // of its cache
  std::string_view tenant;   // "": no tenant
  std::string_view outcome;  // as in metrics: "stop", "cancelled", ...
  std::string_view
      reason;  // of a failure, as its client sees it: "DRAINING", ...; else the outcome
  const Usage* usage = nullptr;
  size_t samples = 1;                   // that `usage` is of
  const TraceContext* trace = nullptr;  // null: it is in none
};

void LogRequest(const RequestRecord& record);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_REQUEST_LOG_H_
