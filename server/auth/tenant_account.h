// What a tenant may use in a minute and at once, and what it has used. A request is admitted when
// it arrives and charged when it ends, by its usage: one that costs more than is left ends all the
// same, and the next ones wait until its debt is paid off.
//
// Thread safe.
#ifndef HYDRANT_SERVER_AUTH_TENANT_ACCOUNT_H_
#define HYDRANT_SERVER_AUTH_TENANT_ACCOUNT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "scheduler/request.h"
#include "server/wire/status_details.h"

namespace hydrant {

// Unset: no limit.
struct Quotas {
  std::optional<double> requests_per_minute{};
  std::optional<double> tokens_per_minute{};        // of prompts and answers
  std::optional<double> page_seconds_per_minute{};  // pages of the KV pool, times how long
  std::optional<int64_t> concurrent_requests{};
  std::optional<int64_t> contexts{};  // kept in memory

  bool operator==(const Quotas&) const = default;
};

// Totals since the start, but for `running`.
struct TenantUse {
  int64_t running = 0;
  int64_t requests = 0;  // that were admitted
  int64_t refused = 0;   // for a quota
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  double page_seconds = 0;
};

// Of a quota that comes back as time goes: full at first, never more than a minute's worth, less
// than nothing where a request cost more than was left.
class Allowance {
 public:
  void SetPerMinute(std::optional<double> per_minute);
  // Until `least` is there, in microseconds; 0: it is.
  TimeUs WaitFor(double least, TimeUs now);
  bool IsFull(TimeUs now) { return WaitFor(per_minute_.value_or(0), now) == 0; }
  void Take(double cost) { left_ -= cost; }

 private:
  std::optional<double> per_minute_;  // unset: never used up
  double left_ = 0;
  TimeUs at_ = 0;  // when left_ was true
};

class TenantAccount : public std::enable_shared_from_this<TenantAccount> {
 public:
  TenantAccount(std::string tenant, const Quotas& quotas);

  const std::string& tenant() const { return tenant_; }
  void SetQuotas(const Quotas& quotas);
  TenantUse Use() const;
  // Whether no request of the tenant runs and its quotas are unused, as for a new account.
  bool IsAsNew(TimeUs now);

  // A request that was admitted. It counts as running until it is charged or released.
  class Admission {
   public:
    explicit Admission(std::shared_ptr<TenantAccount> account) : account_(std::move(account)) {}
    ~Admission() { Release(); }
    Admission(const Admission&) = delete;
    Admission& operator=(const Admission&) = delete;

    // That it will keep its context, where `kept` of the tenant's are there already.
    std::optional<Refusal> Keep(int64_t kept);
    // It has ended; before its client hears of it. Once.
    void Charge(const Usage& usage);
    // It has not begun, and costs nothing more. Idempotent.
    void Release();

   private:
    friend class TenantAccount;
    const std::shared_ptr<TenantAccount> account_;
    // Guarded by the account's mutex_.
    bool running_ = true;
    bool keeps_ = false;
  };
  // Refusal: RESOURCE_EXHAUSTED QUOTA, with the time after which it is worth trying again.
  std::variant<std::shared_ptr<Admission>, Refusal> Admit(TimeUs now);

 private:
  std::optional<Refusal> WhyNot(TimeUs now);
  void End(Admission* admission);

  const std::string tenant_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Quotas quotas_;
  Allowance requests_, tokens_, page_seconds_;
  int64_t keeping_ = 0;  // of the running ones
  TenantUse use_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_TENANT_ACCOUNT_H_
