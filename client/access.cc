#include "client/access.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr char kTokenVariable[] = "HYDRANT_TOKEN";

// "" if no file is named.
absl::StatusOr<std::string> ReadFile(const char* flag, const std::string& path) {
  if (path.empty()) return "";
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // for a folder: reads nothing, throws nothing
  if (!file.is_open() || errno != 0)
    return absl::InvalidArgumentError(fmt::format("{} {}: {}", flag, path, std::strerror(errno)));
  if (text.str().empty())
    return absl::InvalidArgumentError(fmt::format("{} {}: is empty", flag, path));
  return text.str();
}

}  // namespace

absl::Status CheckAddress(const std::string& address) {
  const std::string_view text = address;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!text.starts_with(scheme)) continue;
    std::string_view host = text.substr(scheme.size());
    host = host.substr(0, host.find('/'));
    return absl::InvalidArgumentError(
        fmt::format("--address {}: is a URL; gRPC takes HOST:PORT: {}{}", address, host,
                    scheme == "https://" ? ", with --tls-ca FILE for TLS" : ""));
  }
  const std::string_view port = text.substr(text.rfind(':') + 1);
  int number = 0;
  if (port.size() < text.size() && port.find_first_not_of("0123456789") == port.npos &&
      !text.starts_with("unix") &&
      !(absl::SimpleAtoi(absl::string_view(port.data(), port.size()), &number) && number > 0 &&
        number <= 65535)) {
    return absl::InvalidArgumentError(
        fmt::format("--address {}: port '{}' is outside [1, 65535]", address, port));
  }
  return absl::OkStatus();
}

absl::StatusOr<Access> ReadAccess(const AccessFlags& flags) {
  Access access;
  HYDRANT_ASSIGN_OR_RETURN(const std::string file, ReadFile("--token-file", flags.token_file));
  access.token = std::string(absl::StripAsciiWhitespace(file));
  if (const char* token = std::getenv(kTokenVariable); access.token.empty() && token != nullptr)
    access.token = token;
  if (flags.tls_certificate.empty() != flags.tls_key.empty())
    return absl::InvalidArgumentError("--tls-certificate and --tls-key go together");
  if (flags.tls_ca.empty()) {
    if (flags.tls_key.empty()) return access;
    return absl::InvalidArgumentError("--tls-certificate: needs --tls-ca, the server's CA");
  }
  grpc::SslCredentialsOptions tls;
  HYDRANT_ASSIGN_OR_RETURN(tls.pem_root_certs, ReadFile("--tls-ca", flags.tls_ca));
  HYDRANT_ASSIGN_OR_RETURN(tls.pem_cert_chain,
                           ReadFile("--tls-certificate", flags.tls_certificate));
  HYDRANT_ASSIGN_OR_RETURN(tls.pem_private_key, ReadFile("--tls-key", flags.tls_key));
  access.credentials = grpc::SslCredentials(tls);
  return access;
}

}  // namespace hydrant
