// The access rule of every method of the daemon, its own and gRPC's. A method without a rule is
// refused for all callers. Pure.
#ifndef HYDRANT_SERVER_AUTH_CALL_RULES_H_
#define HYDRANT_SERVER_AUTH_CALL_RULES_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace hydrant {

enum class Who : uint8_t {
  kAnybody,  // no token needed
  kTenant,   // any valid token
  kAdmin,    // an admin's token
};

enum class Where : uint8_t {
  kEverywhere,
  kControl,      // on the control port if there is one, else everywhere
  kControlOnly,  // on the control port only
};

struct CallRule {
  std::string_view method;  // "/package.Service/Method"
  Who who;
  Where where = Where::kEverywhere;
};

std::span<const CallRule> CallRules();
// Null: no such method.
const CallRule* FindCallRule(std::string_view method);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_CALL_RULES_H_
