// What hydrantd was told about who may connect and call, and how its flags say it. Plain data.
#ifndef HYDRANT_SERVER_AUTH_SECURITY_OPTIONS_H_
#define HYDRANT_SERVER_AUTH_SECURITY_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "server/net/certificates.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant {

struct SecurityOptions {
  TlsFiles tls;                       // no certificate: no TLS
  bool insecure = false;              // no TLS, also where other machines can connect
  std::string auth_tokens;            // a file; "": nobody is asked for a token
  std::string control_listen;         // "": none
  std::string new_token;              // a tenant: print a token for it and end
  int max_connections = 0;            // at each address; 0: any number
  int max_concurrent_streams = 2000;  // of a connection; 0: any number
  int max_metadata_bytes = 8 << 10;
};

// The flags write to `options`, which outlives the parsing.
void AddSecurityFlags(CLI::App* app, SecurityOptions* options);
// What the flags say together. InvalidArgument names the one that is wrong.
absl::Status CompleteSecurity(SecurityOptions* options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_SECURITY_OPTIONS_H_
