// What a scrape of /metrics says, in Prometheus' text format: the daemon's own names (hydrant_...)
// and those of vLLM that pickers and dashboards read. docs/guide/observability.md lists them. Reads
// atomics only, and makes no step wait.
#ifndef HYDRANT_SERVER_APIS_METRICS_H_
#define HYDRANT_SERVER_APIS_METRICS_H_

#include <chrono>
#include <string>

#include "scheduler/request.h"
#include "server/auth/call_authorizer.h"
#include "server/auth/tenants.h"
#include "server/net/connection_guard.h"
#include "server/observe/health.h"
#include "server/observe/request_metrics.h"
#include "server/observe/serving_state.h"
#include "server/observe/span_exporter.h"

namespace hydrant {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

struct MetricsArgs {
  std::string version;
  std::chrono::system_clock::time_point started_at;
  ServingState serving;  // what only a model has is absent while there is none
  Health health;
  const RequestMetrics* requests = nullptr;
  TimeUs now = 0;                                       // of the steady clock
  const Tenants* tenants = nullptr;                     // null: there are none
  const AuthorizerMetrics* authorizer = nullptr;        // null: there is none
  const ConnectionGuardMetrics* connections = nullptr;  // the same
  const SpanExporterMetrics* spans = nullptr;           // null: nothing is traced
  const Circuit* collector = nullptr;                   // null: no trace collector
};

// As the label of hydrant_waiting_requests has it.
const char* WaitReasonName(WaitReason reason);

std::string MetricsText(const MetricsArgs& args);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_METRICS_H_
