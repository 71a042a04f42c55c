// Recent rate of an event: counts of the last ten seconds, one per second.
#ifndef HYDRANT_SERVER_OBSERVE_RECENT_RATE_H_
#define HYDRANT_SERVER_OBSERVE_RECENT_RATE_H_

#include <array>
#include <chrono>
#include <cstdint>

namespace hydrant {

class RecentRate {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit RecentRate(Time start) : start_(start), newest_(SecondOf(start)) {}

  // REQUIRES: `now` does not decrease.
  void Add(Time now);
  // Average over the last ten seconds, including the current one; shortly after the start over the
  // time since then, but at least over one second.
  double PerSecond(Time now);

 private:
  static constexpr int64_t kSeconds = 10;
  static int64_t SecondOf(Time time);
  void Forget(int64_t second);  // clears seconds that are too old

  const Time start_;
  int64_t newest_;
  std::array<uint32_t, kSeconds> counts_{};  // second s at s % kSeconds
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_RECENT_RATE_H_
