// Options for connections and authentication, and their flags. Plain data.
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
  bool insecure = false;              // no TLS, even where other machines can connect
  std::string auth_tokens;            // path of the token file; "": no authentication
  std::string control_listen;         // "": none
  std::string new_token;              // tenant: print a token for it and exit
  int max_connections = 0;            // per address; 0: any number
  int max_concurrent_streams = 2000;  // per connection; 0: any number
  int max_metadata_bytes = 8 << 10;
};

// The flags write to `options`, which must outlive the parsing.
void AddSecurityFlags(CLI::App* app, SecurityOptions* options);
// Checks and completes the options after parsing. InvalidArgument names the wrong flag.
absl::Status CompleteSecurity(SecurityOptions* options);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_SECURITY_OPTIONS_H_
