// How long a request that arrives now would wait, by how fast the queue has moved lately. Plain
// arithmetic, no clock.
#ifndef HYDRANT_SCHEDULER_QUEUE_FORECAST_H_
#define HYDRANT_SCHEDULER_QUEUE_FORECAST_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "scheduler/request.h"

namespace hydrant {

// A time after which to try again, from an estimate in microseconds.
inline TimeUs RetryAfter(double wait_us) {
  constexpr double kLeastUs = 10e3, kMostUs = 60e6;
  return static_cast<TimeUs>(std::clamp(wait_us, kLeastUs, kMostUs));
}

// How many requests, and tokens of them, are let in while others wait. Time when nobody waits says
// nothing about that, and does not count; what was long ago counts less.
class AdmissionRate {
 public:
  // Since the last call so many were let in. `waited`: somebody waited all the time between.
  void Observe(TimeUs now, bool waited, int requests, int64_t tokens) {
    const auto passed = static_cast<double>(std::max<TimeUs>(0, now - observed_at_));
    observed_at_ = now;
    const double kept = std::exp(-passed / kWindowUs);
    waited_us_ *= kept;
    requests_ *= kept;
    tokens_ *= kept;
    if (!waited) return;
    waited_us_ += passed;
    requests_ += requests;
    tokens_ += static_cast<double>(tokens);
  }
  // Microseconds until so many have been let in; 0: not known yet.
  double UsForRequests(double requests) const { return UsFor(requests, requests_); }
  double UsForTokens(double tokens) const { return UsFor(tokens, tokens_); }

 private:
  static constexpr double kWindowUs = 10e6;
  static constexpr double kEnoughUs = 1e6;
  double UsFor(double count, double of) const {
    if (waited_us_ < kEnoughUs) return 0;
    // Where nobody was let in the wait is long, and not endless.
    return count * waited_us_ / std::max(of, 0.5);
  }

  TimeUs observed_at_ = 0;
  double waited_us_ = 0, requests_ = 0, tokens_ = 0;
};

struct QueueForecast {
  int waiting = 0;     // requests
  int64_t tokens = 0;  // of them
  AdmissionRate rate{};
  double reading_us = 0;  // for the prompts that are being read, behind the queue
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_QUEUE_FORECAST_H_
