// Builds the exporter and tracer from the options.
#ifndef HYDRANT_SERVER_OBSERVE_TRACING_H_
#define HYDRANT_SERVER_OBSERVE_TRACING_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/observe/span_exporter.h"
#include "server/observe/trace_options.h"
#include "server/observe/tracer.h"

namespace hydrant {

// Both null: tracing is off. The tracer uses the exporter.
struct Tracing {
  std::unique_ptr<SpanExporter> exporter = nullptr;
  std::unique_ptr<Tracer> tracer = nullptr;
};

// InvalidArgument names the flag or environment variable. `on_failure` and `on_circuit` as in
// SpanExporter::Options.
absl::StatusOr<Tracing> StartTracing(const TraceOptions& options, const std::string& version,
                                     std::function<void(const absl::Status&)> on_failure,
                                     Circuit::OnChange on_circuit = {});

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACING_H_
