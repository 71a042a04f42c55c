// How a client gets in: by TLS or not, with a certificate of its own or not, with a token or not.
#ifndef HYDRANT_CLIENT_ACCESS_H_
#define HYDRANT_CLIENT_ACCESS_H_

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant {

// As flags say it: files.
struct AccessFlags {
  std::string tls_ca;                    // PEM; no TLS where it is empty
  std::string tls_certificate, tls_key;  // PEM, of the client's own; "": none
  // "": the token is that of HYDRANT_TOKEN, if any. As an argument it would be in the list of
  // processes.
  std::string token_file;
};

struct Access {
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: no TLS
  std::string token;                                      // "": none
};

// InvalidArgument if `address` is a URL or has a port outside [1, 65535]: gRPC would try to resolve
// it as a host name. Stateless.
absl::Status CheckAddress(const std::string& address);

// InvalidArgument names the flag whose file cannot be used.
absl::StatusOr<Access> ReadAccess(const AccessFlags& flags);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_ACCESS_H_
