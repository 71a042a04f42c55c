// A port's credentials for gRPC: with or without TLS, and with an authorizer for every call.
#ifndef HYDRANT_SERVER_AUTH_PORT_CREDENTIALS_H_
#define HYDRANT_SERVER_AUTH_PORT_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/auth/call_authorizer.h"
#include "server/net/certificates.h"

namespace hydrant {

// `certificates`: null for a port without TLS.
std::shared_ptr<grpc::ServerCredentials> NewPortCredentials(
    std::shared_ptr<Certificates> certificates, const CallAuthorizer& authorizer);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_PORT_CREDENTIALS_H_
