// How often something has happened of late: counts of the last ten seconds, one a second.
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

  // `now` does not go back.
  void Add(Time now);
  // Over the last ten seconds, the one that runs included; since the start where that is less, but
  // over a second at least.
  double PerSecond(Time now);

 private:
  static constexpr int64_t kSeconds = 10;
  static int64_t SecondOf(Time time);
  void Forget(int64_t second);  // what is too old by then

  const Time start_;
  int64_t newest_;
  std::array<uint32_t, kSeconds> counts_{};  // of second s at s % kSeconds
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_RECENT_RATE_H_
