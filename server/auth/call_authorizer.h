// Authorizes every call of a port, gRPC's own services included, before its message is read: by the
// rule of its method it goes on or ends here. Thread safe.
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

// Calls that ended at an authorizer, by why; of all ports together.
struct AuthorizerMetrics {
  std::atomic<uint64_t> unauthenticated{0};
  std::atomic<uint64_t> permission_denied{0};
  std::atomic<uint64_t> unimplemented{0};
};

class CallAuthorizer {
 public:
  struct Options {
    const Tenants* tenants = nullptr;      // outlives the authorizer; null: nobody is asked
    AuthorizerMetrics* metrics = nullptr;  // the same; null: nobody counts
    bool has_control = false;              // there is a control port,
    bool is_control = false;               // and this is it
  };
  explicit CallAuthorizer(const Options& options) : options_(options) {}

  // OK where the call may go on: UNIMPLEMENTED for what this port does not have, UNAUTHENTICATED,
  // PERMISSION_DENIED. `authorizations`: of all metadata of this name.
  absl::Status Admit(std::string_view method, std::span<const std::string_view> authorizations,
                     absl::Time now) const;

 private:
  absl::Status Judge(std::string_view method, std::span<const std::string_view> authorizations,
                     absl::Time now) const;

  const Options options_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_CALL_AUTHORIZER_H_
