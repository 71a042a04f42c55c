#include "server/auth/port_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace hydrant {
namespace {

// State of the callbacks; owned by gRPC's core.
struct Port {
  std::shared_ptr<Certificates> certificates;
  CallAuthorizer authorizer;
  // last passed to the core, which calls under its own lock
  std::shared_ptr<const Pem> given = nullptr;
};

// gRPC 1.51 requires CAs even where it requests no client certificate; then any CA will do.
grpc_ssl_server_certificate_config* ToConfig(const Pem& pem) {
  const grpc_ssl_pem_key_cert_pair pair{pem.key.c_str(), pem.certificate.c_str()};
  return grpc_ssl_server_certificate_config_create(
      (pem.client_ca.empty() ? pem.certificate : pem.client_ca).c_str(), &pair, 1);
}

// Called for every new connection.
grpc_ssl_certificate_config_reload_status FetchCertificates(
    void* user_data, grpc_ssl_server_certificate_config** config) {
  auto* port = static_cast<Port*>(user_data);
  std::shared_ptr<const Pem> pem = port->certificates->Current();
  if (pem == port->given) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  *config = ToConfig(*pem);
  port->given = std::move(pem);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

std::string_view ViewOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// Called for every call, when its headers have arrived.
void ProcessHeaders(void* state, grpc_auth_context*, const grpc_metadata* headers, size_t count,
                    grpc_process_auth_metadata_done_cb done, void* user_data) {
  std::string_view method;
  std::vector<std::string_view> authorizations;
  for (const grpc_metadata& header : std::span(headers, count)) {
    const std::string_view key = ViewOf(header.key);
    if (key == ":path") method = ViewOf(header.value);
    if (key == "authorization") authorizations.push_back(ViewOf(header.value));
  }
  const absl::Status status =
      static_cast<const Port*>(state)->authorizer.Admit(method, authorizations, absl::Now());
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
       status.ok() ? nullptr : std::string(status.message()).c_str());
}

grpc_server_credentials* NewCore(Port* port) {
  if (port->certificates == nullptr) return grpc_insecure_server_credentials_create();
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          port->certificates->WantsClientCertificates()
              ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
              : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
          FetchCertificates, port));
}

// gRPC's C++ API has neither credentials that fetch validated certificates nor a header processor
// without TLS. The core has both.
class PortCredentials final : public grpc::ServerCredentials {
 public:
  explicit PortCredentials(std::unique_ptr<Port> port) : core_(NewCore(port.get())) {
    const grpc_auth_metadata_processor processor{
        .process = ProcessHeaders,
        .destroy = [](void* state) { delete static_cast<Port*>(state); },
        .state = port.release()};
    grpc_server_credentials_set_auth_metadata_processor(core_, processor);
  }
  ~PortCredentials() override { grpc_server_credentials_release(core_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), core_);
  }

  grpc_server_credentials* const core_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> NewPortCredentials(
    std::shared_ptr<Certificates> certificates, const CallAuthorizer& authorizer) {
  return std::make_shared<PortCredentials>(std::make_unique<Port>(
      Port{.certificates = std::move(certificates), .authorizer = authorizer}));
}

}  // namespace hydrant
