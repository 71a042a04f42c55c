#include "server/trace_options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/listening_sockets.h"

namespace hydrant {
namespace {

constexpr char kDefaultPort[] = ":4317";  // OTLP over gRPC

// After the name, or the brackets of an IPv6 address.
bool HasPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon != address.npos && address.find(']', colon) == address.npos;
}

}  // namespace

absl::StatusOr<TraceEndpoint> ParseTraceEndpoint(const std::string& text) {
  constexpr std::string_view kPlain = "http://", kTls = "https://";
  TraceEndpoint endpoint{.address = text, .tls = text.starts_with(kTls)};
  for (const std::string_view scheme : {kPlain, kTls})
    if (text.starts_with(scheme)) endpoint.address = text.substr(scheme.size());
  if (endpoint.address.ends_with('/')) endpoint.address.pop_back();
  if (endpoint.address.find('/') != text.npos || endpoint.address.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not HOST:PORT of OTLP over gRPC, with http:// or https://"));
  }
  if (!HasPort(endpoint.address)) endpoint.address += kDefaultPort;
  HYDRANT_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(endpoint.address));
  if (parsed.host.empty() || parsed.port == 0)
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' names no host, or the port 0"));
  return endpoint;
}

void AddTraceFlags(CLI::App* app, TraceOptions* options) {
  const auto group = "Traces";
  app->add_option("--otlp-traces-endpoint", options->endpoint,
                  "HOST:PORT of an OpenTelemetry collector that takes OTLP over gRPC: it is sent a "
                  "trace of each request (docs/traces.md). https:// in front: TLS; default: none")
      ->envname("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
      ->group(group);
  app->add_option("--otlp-traces-ca", options->ca,
                  "PEM file with CAs of the collector's certificate; default: the system's")
      ->envname("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE")
      ->group(group);
  app->add_option("--otlp-service-name", options->service_name, "Of the daemon, in its traces")
      ->envname("OTEL_SERVICE_NAME")
      ->capture_default_str()
      ->group(group);
  app->add_option("--trace-sample-ratio", options->sample_ratio,
                  "Share of the requests without a traceparent that are traced, 0 to 1; a "
                  "traceparent says for itself whether its trace is sampled")
      ->capture_default_str()
      ->group(group);
}

absl::Status CheckTraces(const TraceOptions& options) {
  // What is no number compares with none.
  if (!(options.sample_ratio >= 0 && options.sample_ratio <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("--trace-sample-ratio: ", options.sample_ratio,
                                                   " is not a number from 0 to 1"));
  }
  if (options.endpoint.empty()) return absl::OkStatus();
  const absl::StatusOr<TraceEndpoint> endpoint = ParseTraceEndpoint(options.endpoint);
  if (!endpoint.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--otlp-traces-endpoint: ", endpoint.status().message()));
  }
  if (!options.ca.empty() && !endpoint->tls)
    return absl::InvalidArgumentError(
        "--otlp-traces-ca: needs an --otlp-traces-endpoint that begins with https://");
  return absl::OkStatus();
}

}  // namespace hydrant
