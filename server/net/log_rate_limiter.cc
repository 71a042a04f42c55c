#include "server/net/log_rate_limiter.h"

namespace hydrant {
namespace {

constexpr std::chrono::seconds kBetweenTwo{10};

}  // namespace

bool LogRateLimiter::Due() {
  ++count_;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return false;
  next_ = now + kBetweenTwo;
  return true;
}

}  // namespace hydrant
