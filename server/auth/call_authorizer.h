// Authorizes every call of a port, including gRPC's own services, by its method's rule before its
// message is read. Thread safe.
#ifndef HYDRANT_SERVER_AUTH_CALL_AUTHORIZER_H_
#define HYDRANT_SERVER_AUTH_CALL_AUTHORIZER_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/auth/tenants.h"

namespace hydrant {

// Calls refused by an authorizer, by status; all ports together.
struct AuthorizerMetrics {
  std::atomic<uint64_t> unauthenticated{0};
  std::atomic<uint64_t> permission_denied{0};
  std::atomic<uint64_t> unimplemented{0};
};

class CallAuthorizer {
 public:
  struct Options {
    const Tenants* tenants = nullptr;      // outlives the authorizer; null: no authentication
    AuthorizerMetrics* metrics = nullptr;  // outlives the authorizer; null: no counters
    bool has_control = false;              // the server has a control port
    bool is_control = false;               // this is the control port
  };
  explicit CallAuthorizer(const Options& options) : options_(options) {}

  // OK, or the status that ends the call: UNIMPLEMENTED for a method that this port does not serve,
  // UNAUTHENTICATED, PERMISSION_DENIED. `authorizations`: all metadata values of this name.
  absl::Status Admit(std::string_view method, std::span<const std::string_view> authorizations,
                     absl::Time now) const;

 private:
  absl::Status Judge(std::string_view method, std::span<const std::string_view> authorizations,
                     absl::Time now) const;

  const Options options_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_CALL_AUTHORIZER_H_
