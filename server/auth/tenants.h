// Authenticates callers. With --auth-tokens every tenant has tokens, an account, and its own
// request ids, contexts and prompts; without, there is no authentication, and a request's tenant
// is trusted.
//
// Thread safe.
#ifndef HYDRANT_SERVER_AUTH_TENANTS_H_
#define HYDRANT_SERVER_AUTH_TENANTS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/mutex.h"
#include "scheduler/request.h"
#include "server/auth/tenant_account.h"
#include "server/auth/token_file.h"
#include "server/wire/status_details.h"

namespace hydrant {

// The identity of a call's client.
class Caller {
 public:
  // Any caller, where there are no tokens.
  Caller() = default;
  Caller(std::shared_ptr<TenantAccount> account, bool admin)
      : account_(std::move(account)), admin_(admin) {}

  bool admin() const { return admin_; }
  // Null: no authentication.
  TenantAccount* account() const { return account_.get(); }
  // Namespace of request ids and salts; "" without authentication.
  std::string owner() const { return account_ == nullptr ? "" : account_->tenant(); }

  // The salt for the caller's prompts and contexts, derived from the salt in the request. Two
  // tenants never share a salt. Every lookup by salt must use it.
  std::string ScopedSalt(const std::string& salt) const;
  // Common prefix of the tenant's salts; "" without authentication.
  std::string SaltPrefix() const;
  // Puts the request into the caller's namespace. PermissionDenied where it names another tenant,
  // InvalidArgument where its salt is too long.
  absl::Status ScopeToTenant(Request* request) const;

 private:
  std::shared_ptr<TenantAccount> account_;
  bool admin_ = true;
};

class Tenants {
 public:
  // Without tokens.
  Tenants() = default;
  // With the tokens of a file. InvalidArgument names the error in it.
  static absl::StatusOr<std::unique_ptr<Tenants>> Load(const std::string& path, TimeUs now = 0);

  bool RequiresTokens() const { return !path_.empty(); }
  // Reads the file again. On an error the previous tokens and quotas stay in force. Call it from
  // one thread at a time. `now` is the clock of the accounts, in microseconds.
  absl::Status Reload(TimeUs now);
  size_t num_tokens() const;

  // The caller with this `authorization` value, "Bearer TOKEN". Unauthenticated.
  absl::StatusOr<Caller> Identify(std::optional<std::string_view> authorization,
                                  absl::Time now) const;

  struct Reading {
    std::string tenant;
    TenantUse use;
  };
  std::vector<Reading> Read() const;  // by tenant

 private:
  // The contents of one reading of the file.
  struct Known {
    TokenFile file;
    std::map<std::string, std::shared_ptr<TenantAccount>> accounts;  // one per tenant in the file
    // Accounts of tenants no longer in the file, while a request of theirs runs or a quota is
    // partly used: a tenant that is added again finds its quotas as they were.
    std::map<std::string, std::shared_ptr<TenantAccount>> former;
  };
  std::shared_ptr<const Known> Current() const;

  std::string path_;
  mutable Mutex mutex_;
  std::shared_ptr<const Known> known_ HYDRANT_GUARDED_BY(mutex_) = std::make_shared<Known>();
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_TENANTS_H_
