// What hydrantd was told about traces, and how its flags and OpenTelemetry's environment say it.
// Plain data.
#ifndef HYDRANT_SERVER_OBSERVE_TRACE_OPTIONS_H_
#define HYDRANT_SERVER_OBSERVE_TRACE_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant {

// A variable that is set, or two empty strings.
struct EnvironmentVariable {
  std::string name = {};
  std::string value = {};
};

struct TraceOptions {
  std::string endpoint = {};  // "": nothing is traced
  std::string ca = {};        // PEM file; "": those of the system
  std::string service_name = "hydrantd";
  double sample_ratio = 1;  // of calls that come without a trace
  // Who said them, for errors: flags, or variables of the environment.
  std::string endpoint_from = "--otlp-traces-endpoint";
  std::string ca_from = "--otlp-traces-ca";
  // These have no flags.
  bool disabled = false;              // whatever else is said
  EnvironmentVariable protocol = {};  // the only one is "grpc"
  EnvironmentVariable headers = {};   // for the collector; secret

  bool Wanted() const { return !disabled && !endpoint.empty(); }
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
// What the environment says and the command line, which `app` has parsed, does not. To be called
// where CLI11 may throw.
void TakeTraceEnvironment(CLI::App* app, TraceOptions* options);
// What all say together. InvalidArgument names the flag or the variable that is wrong.
absl::Status CheckTraces(const TraceOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_TRACE_OPTIONS_H_
