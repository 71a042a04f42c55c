// A tenant's quotas (per minute and concurrent) and its use. A request is admitted when it arrives
// and charged by its usage when it ends: it may cost more than is left, and then later requests
// wait until the debt is refilled.
//
// Thread safe.
#ifndef HYDRANT_SERVER_AUTH_TENANT_ACCOUNT_H_
#define HYDRANT_SERVER_AUTH_TENANT_ACCOUNT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "kernels/mutex.h"
#include "scheduler/request.h"
#include "server/wire/status_details.h"

namespace hydrant {

// Unset: no limit.
struct Quotas {
  std::optional<double> requests_per_minute{};
  std::optional<double> tokens_per_minute{};        // prompt and generated tokens
  std::optional<double> page_seconds_per_minute{};  // pages of the KV pool times seconds held
  std::optional<int64_t> concurrent_requests{};
  std::optional<int64_t> contexts{};  // held in memory

  bool operator==(const Quotas&) const = default;
};

// Totals since the start, except `running`.
struct TenantUse {
  int64_t running = 0;
  int64_t requests = 0;  // admitted
  int64_t refused = 0;   // refused by a quota
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  double page_seconds = 0;
};

// A token bucket: full at first, holds at most a minute's worth, negative after a request that cost
// more than was left.
class Allowance {
 public:
  void SetPerMinute(std::optional<double> per_minute);
  // Microseconds until `least` is available; 0: now.
  TimeUs WaitFor(double least, TimeUs now);
  bool IsFull(TimeUs now) { return WaitFor(per_minute_.value_or(0), now) == 0; }
  void Take(double cost) { left_ -= cost; }

 private:
  std::optional<double> per_minute_;  // unset: unlimited
  double left_ = 0;
  TimeUs at_ = 0;  // time of the last refill of left_
};

class TenantAccount : public std::enable_shared_from_this<TenantAccount> {
 public:
  TenantAccount(std::string tenant, const Quotas& quotas);

  const std::string& tenant() const { return tenant_; }
  void SetQuotas(const Quotas& quotas);
  TenantUse Use() const;
  // Whether no request of the tenant runs and its quotas are full, as in a new account.
  bool IsAsNew(TimeUs now);

  // An admitted request. It counts as running until it is charged or released.
  class Admission {
   public:
    explicit Admission(std::shared_ptr<TenantAccount> account) : account_(std::move(account)) {}
    ~Admission() { Release(); }
    Admission(const Admission&) = delete;
    Admission& operator=(const Admission&) = delete;

    // Reserves a context for the request, where the tenant already has `kept`. Refuses above
    // the quota.
    std::optional<Refusal> Keep(int64_t kept);
    // Charges an ended request, before its client is notified. Call it once.
    void Charge(const Usage& usage);
    // Ends a request that did not start, without further cost. Idempotent.
    void Release();

   private:
    friend class TenantAccount;
    void End() HYDRANT_REQUIRES(account_->mutex_);

    const std::shared_ptr<TenantAccount> account_;
    bool running_ HYDRANT_GUARDED_BY(account_->mutex_) = true;
    bool keeps_ HYDRANT_GUARDED_BY(account_->mutex_) = false;
  };
  // Refusal: RESOURCE_EXHAUSTED QUOTA, with the time after which a retry may succeed.
  std::variant<std::shared_ptr<Admission>, Refusal> Admit(TimeUs now);

 private:
  std::optional<Refusal> CheckQuotas(TimeUs now) HYDRANT_REQUIRES(mutex_);

  const std::string tenant_;
  mutable Mutex mutex_;
  Quotas quotas_ HYDRANT_GUARDED_BY(mutex_);
  Allowance requests_ HYDRANT_GUARDED_BY(mutex_);
  Allowance tokens_ HYDRANT_GUARDED_BY(mutex_);
  Allowance page_seconds_ HYDRANT_GUARDED_BY(mutex_);
  int64_t keeping_ HYDRANT_GUARDED_BY(mutex_) = 0;  // contexts reserved by running requests
  TenantUse use_ HYDRANT_GUARDED_BY(mutex_);
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_TENANT_ACCOUNT_H_
