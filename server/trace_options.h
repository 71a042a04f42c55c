// What hydrantd was told about traces, and how its flags say it. Plain data.
#ifndef HYDRANT_SERVER_TRACE_OPTIONS_H_
#define HYDRANT_SERVER_TRACE_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant {

struct TraceOptions {
  std::string endpoint = {};  // "": nothing is traced
  std::string ca = {};        // PEM file; "": those of the system
  std::string service_name = "hydrantd";
  double sample_ratio = 1;  // of calls that come without a trace
};

// Where a collector listens.
struct TraceEndpoint {
  std::string address;  // host:port
  bool tls = false;
};
// [http://|https://]HOST[:PORT][/]; InvalidArgument for anything else.
absl::StatusOr<TraceEndpoint> ParseTraceEndpoint(const std::string& text);

// The flags write to `options`, which outlives the parsing.
void AddTraceFlags(CLI::App* app, TraceOptions* options);
// What the flags say together. InvalidArgument names the one that is wrong.
absl::Status CheckTraces(const TraceOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_TRACE_OPTIONS_H_
