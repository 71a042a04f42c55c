// The text of a scrape of /metrics, in Prometheus' format: the daemon's own names (hydrant_...) and
// the names of vLLM that endpoint pickers and dashboards read. docs/guide/observability.md lists
// them. Reads atomics only and does not delay a step.
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
  ServingState serving;  // metrics of the model are absent until it is loaded
  Health health;
  const RequestMetrics* requests = nullptr;
  TimeUs now = 0;                                       // steady clock
  const Tenants* tenants = nullptr;                     // null: no authentication
  const AuthorizerMetrics* authorizer = nullptr;        // null: none
  const ConnectionGuardMetrics* connections = nullptr;  // null: none
  const SpanExporterMetrics* spans = nullptr;           // null: tracing is off
  const Circuit* collector = nullptr;                   // null: no trace collector
};

// The value of hydrant_waiting_requests' label `reason`.
const char* WaitReasonName(WaitReason reason);

std::string MetricsText(const MetricsArgs& args);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_METRICS_H_
