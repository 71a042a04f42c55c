// Who may call what, of all methods that the daemon has, its own and gRPC's. A method that is not
// in the table may be called by nobody. Pure.
#ifndef HYDRANT_SERVER_AUTH_CALL_RULES_H_
#define HYDRANT_SERVER_AUTH_CALL_RULES_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace hydrant {

enum class Who : uint8_t {
  kAnybody,  // without a token
  kTenant,   // with one
  kAdmin,    // with an admin's
};

enum class Where : uint8_t {
  kEverywhere,
  kControl,      // on the control port where there is one, else everywhere
  kControlOnly,  // nowhere where there is none
};

struct CallRule {
  std::string_view method;  // "/package.Service/Method"
  Who who;
  Where where = Where::kEverywhere;
};

std::span<const CallRule> CallRules();
// Null: there is no such method.
const CallRule* FindCallRule(std::string_view method);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_CALL_RULES_H_
