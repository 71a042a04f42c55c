#include "server/observe/recent_rate.h"

#include <algorithm>
#include <numeric>

namespace hydrant {

int64_t RecentRate::SecondOf(Time time) {
  return std::chrono::floor<std::chrono::seconds>(time.time_since_epoch()).count();
}

void RecentRate::Forget(int64_t second) {
  if (second - newest_ >= kSeconds) {
    counts_.fill(0);
  } else {
    for (int64_t s = newest_ + 1; s <= second; ++s) counts_[s % kSeconds] = 0;
  }
  newest_ = std::max(newest_, second);
}

void RecentRate::Add(Time now) {
  Forget(SecondOf(now));
  ++counts_[newest_ % kSeconds];
}

double RecentRate::PerSecond(Time now) {
  Forget(SecondOf(now));
  const Time oldest(std::chrono::seconds(newest_ - kSeconds + 1));
  const std::chrono::duration<double> over = now - std::max(oldest, start_);
  const auto count = std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
  return static_cast<double>(count) / std::max(over.count(), 1.0);
}

}  // namespace hydrant
