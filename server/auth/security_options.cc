#include "server/auth/security_options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "server/net/listening_sockets.h"

namespace hydrant {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

absl::Status WrongFlag(const std::string& why) { return absl::InvalidArgumentError(why); }

// A bare port is bound to loopback.
absl::Status CompleteControl(std::string* listen) {
  if (listen->empty() || listen->starts_with("unix:")) return absl::OkStatus();
  if (listen->find(':') == std::string::npos) *listen = absl::StrCat(kLoopback, ":", *listen);
  if (listen->starts_with(':')) *listen = kLoopback + *listen;
  const absl::StatusOr<HostPort> parsed = ParseHostPort(*listen);
  if (parsed.ok()) return absl::OkStatus();
  return WrongFlag(absl::StrCat("--control-listen: ", parsed.status().message()));
}

}  // namespace

void AddSecurityFlags(CLI::App* app, SecurityOptions* options) {
  const auto group = "Security";
  app->add_option("--tls-certificate", options->tls.certificate,
                  "PEM file with the server's certificate, then those that lead to its CA: all "
                  "gRPC addresses speak TLS. A file that is replaced is used for new connections")
      ->group(group);
  app->add_option("--tls-key", options->tls.key, "PEM file with its private key")->group(group);
  app->add_option("--tls-client-ca", options->tls.client_ca,
                  "PEM file with CAs: clients must show a certificate of one of them")
      ->group(group);
  app->add_flag("--insecure", options->insecure,
                "Listen without TLS also where other machines can connect")
      ->group(group);
  app->add_option("--auth-tokens", options->auth_tokens,
                  "YAML file of tenants' tokens (docs/guide/security.md): every call wants one. "
                  "SIGHUP has it read anew")
      ->group(group);
  app->add_option("--new-token", options->new_token,
                  "TENANT: print a new token and its entry for that file, and end")
      ->configurable(false)
      ->group(group);
  app->add_option("--control-listen", options->control_listen,
                  "[host:]port, 127.0.0.1 where no host is named, or unix:/path: one more address. "
                  "Admins' methods, reflection and channelz are then there and nowhere else")
      ->group(group);
  app->add_option("--max-connections", options->max_connections,
                  "Connections to each gRPC address at a time; 0: as many as files may be open")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-concurrent-streams", options->max_concurrent_streams,
                  "Calls of a connection at a time; its client holds further ones back, or is "
                  "disconnected; 0: any number")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str()
      ->group(group);
  app->add_option("--max-metadata-bytes", options->max_metadata_bytes,
                  "Of a call's headers; a call with more is refused")
      ->check(CLI::Range(1024, 1 << 24))
      ->capture_default_str()
      ->group(group);
}

absl::Status CompleteSecurity(SecurityOptions* options) {
  const TlsFiles& tls = options->tls;
  if (tls.certificate.empty() != tls.key.empty()) {
    return WrongFlag(tls.key.empty()
                         ? "--tls-key: is missing; --tls-certificate needs its key"
                         : "--tls-certificate: is missing; --tls-key is the key of one");
  }
  if (tls.certificate.empty() && !tls.client_ca.empty())
    return WrongFlag("--tls-client-ca: needs --tls-certificate and --tls-key");
  return CompleteControl(&options->control_listen);
}

}  // namespace hydrant
