// Whose calls these are. With --auth-tokens every tenant has tokens, an account, and request ids,
// contexts and prompts of its own; without, nobody is asked, and a request's tenant is believed.
//
// Thread safe.
#ifndef HYDRANT_SERVER_AUTH_TENANTS_H_
#define HYDRANT_SERVER_AUTH_TENANTS_H_

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/request.h"
#include "server/auth/tenant_account.h"
#include "server/auth/token_file.h"
#include "server/wire/status_details.h"

namespace hydrant {

// Who makes a call.
class Caller {
 public:
  // Anybody, where there are no tokens.
  Caller() = default;
  Caller(std::shared_ptr<TenantAccount> account, bool admin)
      : account_(std::move(account)), admin_(admin) {}

  bool admin() const { return admin_; }
  // Null: nobody is asked.
  TenantAccount* account() const { return account_.get(); }
  // Of request ids, and of what a salt is for; "" where nobody is asked.
  std::string owner() const { return account_ == nullptr ? "" : account_->tenant(); }

  // The salt by which the caller's prompts and contexts are found, of the one that it names: no two
  // tenants have one in common. Everything that is found by a salt goes through here.
  std::string OwnSalt(const std::string& salt) const;
  // What all salts of the tenant begin with; "" where nobody is asked.
  std::string SaltPrefix() const;
  // Makes the request the caller's. PermissionDenied where it names another tenant, InvalidArgument
  // where its salt is too long.
  absl::Status Own(Request* request) const;

 private:
  std::shared_ptr<TenantAccount> account_;
  bool admin_ = true;
};

class Tenants {
 public:
  // Without tokens.
  Tenants() = default;
  // With those of a file. InvalidArgument names what is wrong with it.
  static absl::StatusOr<std::unique_ptr<Tenants>> Load(const std::string& path, TimeUs now = 0);

  bool AsksForTokens() const { return !path_.empty(); }
  // Reads the file again. On an error the tokens and quotas from before stay in force. Call it from
  // one thread at a time. `now` is the clock of the accounts, in microseconds.
  absl::Status Reload(TimeUs now);
  size_t num_tokens() const;

  // The caller whose `authorization` this is, "Bearer TOKEN". Unauthenticated.
  absl::StatusOr<Caller> Identify(std::optional<std::string_view> authorization,
                                  absl::Time now) const;

  struct Reading {
    std::string tenant;
    TenantUse use;
  };
  std::vector<Reading> Read() const;  // by tenant

 private:
  // What one reading of the file made.
  struct Known {
    TokenFile file;
    std::map<std::string, std::shared_ptr<TenantAccount>> accounts;  // of every tenant in it
    // Accounts of tenants that an earlier reading had, while a request of theirs runs or a quota is
    // partly used: a tenant that comes back finds its quotas as it left them.
    std::map<std::string, std::shared_ptr<TenantAccount>> former;
  };
  std::shared_ptr<const Known> Current() const;

  std::string path_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Known> known_ = std::make_shared<Known>();  // guarded by mutex_
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_TENANTS_H_
