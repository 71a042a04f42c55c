#include "server/observe/tracing.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/small_file.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr uintmax_t kMaxCaBytes = 4 << 20;

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(const TraceOptions& options,
                                                                        bool tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;  // default: the system's CAs
  if (!options.ca.empty()) {
    absl::StatusOr<std::string> pem = ReadSmallFile(options.ca, kMaxCaBytes);
    if (!pem.ok())
      return absl::InvalidArgumentError(absl::StrCat(options.ca_from, " ", pem.status().message()));
    if (pem->empty())
      return absl::InvalidArgumentError(
          absl::StrCat(options.ca_from, " ", options.ca, ": is empty"));
    ssl.pem_root_certs = *std::move(pem);
  }
  return grpc::SslCredentials(ssl);
}

}  // namespace

absl::StatusOr<Tracing> StartTracing(const TraceOptions& options, const std::string& version,
                                     std::function<void(const absl::Status&)> on_failure,
                                     Circuit::OnChange on_circuit) {
  Tracing tracing;
  if (!options.Wanted()) return tracing;
  HYDRANT_ASSIGN_OR_RETURN(const TraceEndpoint endpoint, ParseTraceEndpoint(options.endpoint));
  HYDRANT_ASSIGN_OR_RETURN(auto credentials, CredentialsOf(options, endpoint.tls));
  HYDRANT_ASSIGN_OR_RETURN(TraceHeaders headers, ParseTraceHeaders(options.headers.value));
  tracing.exporter =
      std::make_unique<SpanExporter>(SpanExporter::Options{.address = endpoint.address,
                                                           .credentials = std::move(credentials),
                                                           .headers = std::move(headers),
                                                           .service_name = options.service_name,
                                                           .version = version,
                                                           .on_failure = std::move(on_failure),
                                                           .on_circuit = std::move(on_circuit)});
  tracing.tracer = std::make_unique<Tracer>(
      options.sample_ratio, [exporter = tracing.exporter.get()](std::vector<Span> spans) {
        exporter->Add(std::move(spans));
      });
  return tracing;
}

}  // namespace hydrant
