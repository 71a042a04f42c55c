#include "scheduler/store/circuit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

constexpr std::chrono::seconds kFirstPause{1};
constexpr std::chrono::seconds kLongestPause{32};

}  // namespace

Circuit::Circuit(int failures, OnChange on_change)
    : max_failures_(failures), on_change_(std::move(on_change)) {}

absl::Status Circuit::Enter(Time now) {
  if (!open_) return absl::OkStatus();
  const MutexLock lock(mutex_);
  if (!open_) return absl::OkStatus();
  if (now < next_)
    return absl::UnavailableError(
        absl::StrCat(std::string(why_.message()), "; it is asked again in a while"));
  // The trying call may never report its result; another call tries after the next pause.
  next_ = now + pause_;
  trying_ = true;
  return absl::OkStatus();
}

bool Circuit::Refuses(Time now) const {
  if (!open_) return false;
  const MutexLock lock(mutex_);
  return open_ && now < next_;
}

void Circuit::Succeeded() {
  const MutexLock lock(mutex_);
  failures_ = 0;
  if (!open_.exchange(false)) return;
  trying_ = false;
  if (on_change_) on_change_(absl::OkStatus());
}

void Circuit::Failed(const absl::Status& why, Time now) {
  const MutexLock lock(mutex_);
  why_ = why;
  if (open_) {
    // Failures of calls that began before the circuit breaker opened are ignored.
    if (!std::exchange(trying_, false)) return;
    pause_ = std::min(2 * pause_, kLongestPause);
    next_ = now + pause_;
    return;
  }
  if (++failures_ < max_failures_) return;
  open_ = true;
  ++openings_;
  pause_ = kFirstPause;
  next_ = now + pause_;
  if (on_change_) on_change_(why);
}

}  // namespace hydrant
