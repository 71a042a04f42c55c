// A client's credentials: TLS, a client certificate and a token, all optional.
#ifndef HYDRANT_CLIENT_ACCESS_H_
#define HYDRANT_CLIENT_ACCESS_H_

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant {

// File names from flags.
struct AccessFlags {
  std::string tls_ca;                    // PEM; "": no TLS
  std::string tls_certificate, tls_key;  // PEM, client certificate; "": none
  // "": the token of HYDRANT_TOKEN, if set. There is no flag for the token itself, because it would
  // appear in the list of processes.
  std::string token_file;
};

struct Access {
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: no TLS
  std::string token;                                      // "": none
};

// InvalidArgument if `address` is a URL or has a port outside [1, 65535]: gRPC would try to resolve
// it as a host name. Stateless.
absl::Status CheckAddress(const std::string& address);

// InvalidArgument names the flag with the unusable file.
absl::StatusOr<Access> ReadAccess(const AccessFlags& flags);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_ACCESS_H_
