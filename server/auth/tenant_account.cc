#include "server/auth/tenant_account.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

constexpr double kMinuteUs = 60e6;
constexpr double kRounding = 1e-9;      // tolerance for sums of small times
constexpr TimeUs kRetryUs = 1'000'000;  // when the end of a running request is unknown

Refusal Over(const std::string& tenant, std::string_view what, TimeUs retry_after_us) {
  return {absl::ResourceExhaustedError(
              absl::StrCat("quota of tenant ", tenant, ": ", std::string(what))),
          "QUOTA", retry_after_us};
}

// Mean pages times the time in which the request held them, without the time when it was swapped
// out or preempted.
double PageSeconds(const Usage& usage) {
  const TimeUs held_us = usage.prefill_us + usage.decode_us - usage.swapped_us - usage.preempted_us;
  return usage.kv_pages_mean * static_cast<double>(std::max<TimeUs>(held_us, 0)) * 1e-6;
}

}  // namespace

void Allowance::SetPerMinute(std::optional<double> per_minute) {
  if (per_minute == per_minute_) return;
  left_ = per_minute_.has_value() && per_minute.has_value() ? std::min(left_, *per_minute)
                                                            : per_minute.value_or(0);
  per_minute_ = per_minute;
}

TimeUs Allowance::WaitFor(double least, TimeUs now) {
  if (!per_minute_.has_value()) return 0;
  const double per_us = *per_minute_ / kMinuteUs;
  if (now > at_) {
    left_ = std::min(*per_minute_, left_ + per_us * static_cast<double>(now - at_));
    at_ = now;
  }
  if (left_ >= least - kRounding) return 0;
  return std::max<TimeUs>(1, std::llround((least - left_) / per_us));
}

TenantAccount::TenantAccount(std::string tenant, const Quotas& quotas)
    : tenant_(std::move(tenant)) {
  SetQuotas(quotas);
}

void TenantAccount::SetQuotas(const Quotas& quotas) {
  const MutexLock lock(mutex_);
  quotas_ = quotas;
  requests_.SetPerMinute(quotas.requests_per_minute);
  tokens_.SetPerMinute(quotas.tokens_per_minute);
  page_seconds_.SetPerMinute(quotas.page_seconds_per_minute);
}

TenantUse TenantAccount::Use() const {
  const MutexLock lock(mutex_);
  return use_;
}

bool TenantAccount::IsAsNew(TimeUs now) {
  const MutexLock lock(mutex_);
  return use_.running == 0 && requests_.IsFull(now) && tokens_.IsFull(now) &&
         page_seconds_.IsFull(now);
}

std::variant<std::shared_ptr<TenantAccount::Admission>, Refusal> TenantAccount::Admit(TimeUs now) {
  const MutexLock lock(mutex_);
  if (std::optional<Refusal> no = CheckQuotas(now)) {
    ++use_.refused;
    return *std::move(no);
  }
  if (quotas_.requests_per_minute.has_value()) requests_.Take(1);
  ++use_.running;
  ++use_.requests;
  return std::make_shared<Admission>(shared_from_this());
}

std::optional<Refusal> TenantAccount::CheckQuotas(TimeUs now) {
  if (const auto& most = quotas_.concurrent_requests; most.has_value() && use_.running >= *most)
    return Over(tenant_, absl::StrCat(*most, " requests run, which is its concurrent_requests"),
                kRetryUs);
  if (const TimeUs wait = requests_.WaitFor(1, now); wait > 0)
    return Over(tenant_,
                absl::StrCat("requests_per_minute, ", *quotas_.requests_per_minute, ", is used up"),
                wait);
  // The last admitted request may cost more than is left, because its cost is unknown until
  // it ends.
  if (const TimeUs wait = tokens_.WaitFor(1, now); wait > 0)
    return Over(tenant_,
                absl::StrCat("tokens_per_minute, ", *quotas_.tokens_per_minute, ", is used up"),
                wait);
  const double least = std::min(1.0, quotas_.page_seconds_per_minute.value_or(1));
  if (const TimeUs wait = page_seconds_.WaitFor(least, now); wait > 0)
    return Over(
        tenant_,
        absl::StrCat("page_seconds_per_minute, ", *quotas_.page_seconds_per_minute, ", is used up"),
        wait);
  return std::nullopt;
}

void TenantAccount::Admission::End() {
  if (std::exchange(running_, false)) --account_->use_.running;
  if (std::exchange(keeps_, false)) --account_->keeping_;
}

std::optional<Refusal> TenantAccount::Admission::Keep(int64_t kept) {
  const MutexLock lock(account_->mutex_);
  const std::optional<int64_t>& most = account_->quotas_.contexts;
  if (most.has_value() && kept + account_->keeping_ >= *most) {
    ++account_->use_.refused;
    return Over(account_->tenant_,
                absl::StrCat(kept + account_->keeping_, " contexts are kept or about to be, of ",
                             *most, " (contexts); delete others first"),
                0);
  }
  ++account_->keeping_;
  keeps_ = true;
  return std::nullopt;
}

void TenantAccount::Admission::Charge(const Usage& usage) {
  const double page_seconds = PageSeconds(usage);
  const MutexLock lock(account_->mutex_);
  account_->tokens_.Take(usage.prompt_tokens + usage.completion_tokens);
  account_->page_seconds_.Take(page_seconds);
  account_->use_.prompt_tokens += usage.prompt_tokens;
  account_->use_.generation_tokens += usage.completion_tokens;
  account_->use_.page_seconds += page_seconds;
  End();
}

void TenantAccount::Admission::Release() {
  const MutexLock lock(account_->mutex_);
  End();
}

}  // namespace hydrant
