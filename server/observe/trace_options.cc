#include "server/observe/trace_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/net/listening_sockets.h"
#include "server/observe/trace_headers.h"

namespace hydrant {
namespace {

constexpr char kDefaultPort[] = ":4317";  // OTLP over gRPC

// A port follows the name, or the brackets of an IPv6 address.
bool HasPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon != address.npos && address.find(']', colon) == address.npos;
}

// A variable for traces overrides the one for all signals; an empty variable counts as unset.
EnvironmentVariable FindVariable(const std::string& setting) {
  for (const char* prefix : {"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"}) {
    const std::string name = prefix + setting;
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && *value != '\0') return {name, value};
  }
  return {};
}

void Take(const EnvironmentVariable& variable, CLI::Option* option, std::string* from) {
  if (variable.name.empty() || option->count() > 0) return;
  option->add_result(variable.value);
  option->run_callback();
  *from = variable.name;
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
                  "trace of each request (docs/guide/observability.md). https:// in front: TLS; "
                  "default: $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, $OTEL_EXPORTER_OTLP_ENDPOINT, "
                  "else none")
      ->group(group);
  app->add_option(
         "--otlp-traces-ca", options->ca,
         "PEM file with CAs of the collector's certificate; default: "
         "$OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE, $OTEL_EXPORTER_OTLP_CERTIFICATE, else the "
         "system's")
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

void TakeTraceEnvironment(CLI::App* app, TraceOptions* options) {
  const char* disabled = std::getenv("OTEL_SDK_DISABLED");
  options->disabled = disabled != nullptr && absl::EqualsIgnoreCase(disabled, "true");
  Take(FindVariable("ENDPOINT"), app->get_option("--otlp-traces-endpoint"),
       &options->endpoint_from);
  Take(FindVariable("CERTIFICATE"), app->get_option("--otlp-traces-ca"), &options->ca_from);
  options->protocol = FindVariable("PROTOCOL");
  options->headers = FindVariable("HEADERS");
}

absl::Status CheckTraces(const TraceOptions& options) {
  // Rejects NaN, too.
  if (!(options.sample_ratio >= 0 && options.sample_ratio <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("--trace-sample-ratio: ", options.sample_ratio,
                                                   " is not a number from 0 to 1"));
  }
  if (!options.Wanted()) return absl::OkStatus();
  const auto wrong = [](const std::string& field, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
  };
  if (const auto& [name, protocol] = options.protocol; !name.empty() && protocol != "grpc") {
    return wrong(name, absl::StrCat("'", protocol,
                                    "' is not spoken, only grpc: set OTEL_EXPORTER_OTLP_TRACES_"
                                    "PROTOCOL=grpc, and let ",
                                    options.endpoint_from,
                                    " name the collector's port for it, usually 4317"));
  }
  const absl::StatusOr<TraceEndpoint> endpoint = ParseTraceEndpoint(options.endpoint);
  if (!endpoint.ok()) return wrong(options.endpoint_from, endpoint.status().message());
  if (!options.ca.empty() && !endpoint->tls) {
    return wrong(options.ca_from, absl::StrCat("is for TLS, but what ", options.endpoint_from,
                                               " says does not begin with https://"));
  }
  const absl::StatusOr<TraceHeaders> headers = ParseTraceHeaders(options.headers.value);
  if (!headers.ok()) return wrong(options.headers.name, headers.status().message());
  return absl::OkStatus();
}

}  // namespace hydrant
