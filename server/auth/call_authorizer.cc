#include "server/auth/call_authorizer.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/auth/call_rules.h"

namespace hydrant {

absl::Status CallAuthorizer::Admit(std::string_view method,
                                   std::span<const std::string_view> authorizations,
                                   absl::Time now) const {
  absl::Status status = Judge(method, authorizations, now);
  if (options_.metrics == nullptr) return status;
  if (absl::IsUnauthenticated(status)) ++options_.metrics->unauthenticated;
  if (absl::IsPermissionDenied(status)) ++options_.metrics->permission_denied;
  if (absl::IsUnimplemented(status)) ++options_.metrics->unimplemented;
  return status;
}

absl::Status CallAuthorizer::Judge(std::string_view method,
                                   std::span<const std::string_view> authorizations,
                                   absl::Time now) const {
  const CallRule* rule = FindCallRule(method);
  if (rule == nullptr) return absl::UnimplementedError("this server has no such method");
  const bool elsewhere =
      !options_.is_control && (rule->ports == Ports::kControlOnly ||
                               (rule->ports == Ports::kControl && options_.has_control));
  if (elsewhere) return absl::UnimplementedError("this method is served on the control port alone");
  if (rule->access == Access::kAnyone) return absl::OkStatus();
  if (options_.tenants == nullptr) return absl::OkStatus();
  // With two tokens, neither is trusted.
  if (authorizations.size() > 1)
    return absl::UnauthenticatedError("authorization: is there more than once");
  const absl::StatusOr<Caller> caller = options_.tenants->Identify(
      authorizations.empty() ? std::nullopt : std::optional(authorizations.front()), now);
  if (!caller.ok()) return caller.status();
  if (rule->access == Access::kAdmin && !caller->admin())
    return absl::PermissionDeniedError("this method wants an admin's token");
  return absl::OkStatus();
}

}  // namespace hydrant
