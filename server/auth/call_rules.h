// The access rule of every method of the daemon, its own and gRPC's. A method without a rule is
// refused for all callers. Pure.
#ifndef HYDRANT_SERVER_AUTH_CALL_RULES_H_
#define HYDRANT_SERVER_AUTH_CALL_RULES_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace hydrant {

enum class Access : uint8_t {
  kAnyone,  // no token needed
  kTenant,  // any valid token
  kAdmin,   // an admin's token
};

enum class Ports : uint8_t {
  kAll,
  kControl,      // on the control port if there is one, else on all
  kControlOnly,  // on the control port only
};

struct CallRule {
  std::string_view method;  // "/package.Service/Method"
  Access access;
  Ports ports = Ports::kAll;
};

std::span<const CallRule> CallRules();
// Null: no such method.
const CallRule* FindCallRule(std::string_view method);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_CALL_RULES_H_
