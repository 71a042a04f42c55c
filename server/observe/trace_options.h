// Options of tracing, from flags and OpenTelemetry's environment variables. Plain data.
#ifndef HYDRANT_SERVER_OBSERVE_TRACE_OPTIONS_H_
#define HYDRANT_SERVER_OBSERVE_TRACE_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant {

// A set variable, or two empty strings.
struct EnvironmentVariable {
  std::string name = {};
  std::string value = {};
};

struct TraceOptions {
  std::string endpoint = {};  // "": tracing is off
  std::string ca = {};        // PEM file; "": the system's CAs
  std::string service_name = "hydrantd";
  double sample_ratio = 1;  // for calls without a trace context
  // Source of the two values, for errors: a flag or an environment variable.
  std::string endpoint_from = "--otlp-traces-endpoint";
  std::string ca_from = "--otlp-traces-ca";
  // Without flags:
  bool disabled = false;              // overrides everything else
  EnvironmentVariable protocol = {};  // only "grpc" is supported
  EnvironmentVariable headers = {};   // for the collector; secret

  bool Wanted() const { return !disabled && !endpoint.empty(); }
};

// Address of a collector.
struct TraceEndpoint {
  std::string address;  // host:port
  bool tls = false;
};
// [http://|https://]HOST[:PORT][/]; InvalidArgument for anything else.
absl::StatusOr<TraceEndpoint> ParseTraceEndpoint(const std::string& text);

// The flags write to `options`, which must outlive the parsing.
void AddTraceFlags(CLI::App* app, TraceOptions* options);
// Takes from the environment the options that are not on the command line, which `app` has parsed.
// Call it where CLI11 may throw.
void TakeTraceEnvironment(CLI::App* app, TraceOptions* options);
// Checks the options together. InvalidArgument names the wrong flag or variable.
absl::Status CheckTraces(const TraceOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACE_OPTIONS_H_
