#include "server/auth/tenants.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "scheduler/request_check.h"

namespace hydrant {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr char kEndOfTenant = '\0';  // not allowed in a tenant's name

}  // namespace

std::string Caller::SaltPrefix() const {
  return account_ == nullptr ? "" : account_->tenant() + kEndOfTenant;
}

std::string Caller::ScopedSalt(const std::string& salt) const { return SaltPrefix() + salt; }

absl::Status Caller::ScopeToTenant(Request* request) const {
  if (account_ == nullptr) return absl::OkStatus();
  const std::string& tenant = account_->tenant();
  if (!request->tenant.empty() && request->tenant != tenant) {
    return absl::PermissionDeniedError(absl::StrCat("scheduling.tenant: is ", request->tenant,
                                                    ", but the token is of ", tenant,
                                                    "; leave it unset"));
  }
  HYDRANT_RETURN_IF_ERROR(CheckSalt(request->cache_salt));
  request->tenant = tenant;
  request->owner = tenant;
  request->cache_salt = ScopedSalt(request->cache_salt);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tenants>> Tenants::Load(const std::string& path, TimeUs now) {
  auto tenants = std::make_unique<Tenants>();
  tenants->path_ = path;
  HYDRANT_RETURN_IF_ERROR(tenants->Reload(now));
  return tenants;
}

// Tenants keep their accounts, and these their use.
absl::Status Tenants::Reload(TimeUs now) {
  if (!RequiresTokens()) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(TokenFile file, ReadTokenFile(path_));
  const std::shared_ptr<const Known> before = Current();
  auto known = std::make_shared<Known>();
  known->former = before->accounts;
  known->former.insert(before->former.begin(), before->former.end());
  for (const auto& [tenant, quotas] : file.tenants) {
    auto old = known->former.extract(tenant);
    if (old.empty()) {
      known->accounts[tenant] = std::make_shared<TenantAccount>(tenant, quotas);
    } else {
      old.mapped()->SetQuotas(quotas);
      known->accounts.insert(std::move(old));
    }
  }
  std::erase_if(known->former, [now](const auto& entry) { return entry.second->IsAsNew(now); });
  known->file = std::move(file);
  const MutexLock lock(mutex_);
  known_ = std::move(known);
  return absl::OkStatus();
}

std::shared_ptr<const Tenants::Known> Tenants::Current() const {
  const MutexLock lock(mutex_);
  return known_;
}

size_t Tenants::num_tokens() const { return Current()->file.tokens.size(); }

absl::StatusOr<Caller> Tenants::Identify(std::optional<std::string_view> authorization,
                                         absl::Time now) const {
  if (!RequiresTokens()) return Caller();
  if (!authorization.has_value())
    return absl::UnauthenticatedError(
        "this server wants a token: send metadata 'authorization: Bearer TOKEN'");
  // The scheme's name is case-insensitive (RFC 9110).
  const bool bearer = absl::StartsWithIgnoreCase({authorization->data(), authorization->size()},
                                                 {kBearer.data(), kBearer.size()});
  if (!bearer)
    return absl::UnauthenticatedError("authorization: is not of the form 'Bearer TOKEN'");
  const std::shared_ptr<const Known> known = Current();
  const TokenEntry* entry = known->file.Find(authorization->substr(kBearer.size()));
  if (entry == nullptr)
    return absl::UnauthenticatedError("authorization: the token is not known here");
  if (now >= entry->expires)
    return absl::UnauthenticatedError("authorization: the token has expired");
  return Caller(known->accounts.at(entry->tenant), entry->admin);
}

std::vector<Tenants::Reading> Tenants::Read() const {
  std::vector<Reading> readings;
  for (const auto& [tenant, account] : Current()->accounts)
    readings.push_back({tenant, account->Use()});
  return readings;
}

}  // namespace hydrant
