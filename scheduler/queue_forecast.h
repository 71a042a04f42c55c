// Estimates the wait of a new request from the recent speed of the queue. Plain arithmetic,
// no clock.
#ifndef HYDRANT_SCHEDULER_QUEUE_FORECAST_H_
#define HYDRANT_SCHEDULER_QUEUE_FORECAST_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "scheduler/request.h"

namespace hydrant {

// A retry time from an estimate in microseconds, clamped.
inline TimeUs RetryAfter(double wait_us) {
  constexpr double kLeastUs = 10e3, kMaxUs = 60e6;
  return static_cast<TimeUs>(std::clamp(wait_us, kLeastUs, kMaxUs));
}

// The rate at which requests, and their tokens, are admitted while others wait. Time without
// waiting requests is ignored; older observations count less.
class AdmissionRate {
 public:
  // Records admissions since the last call. `waited`: the queue was never empty in between.
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
  // Microseconds until this many are admitted; 0: unknown.
  double UsForRequests(double requests) const { return UsFor(requests, requests_); }
  double UsForTokens(double tokens) const { return UsFor(tokens, tokens_); }

 private:
  static constexpr double kWindowUs = 10e6;
  static constexpr double kEnoughUs = 1e6;
  double UsFor(double count, double of) const {
    if (waited_us_ < kEnoughUs) return 0;
    // Without admissions the estimate is long but finite.
    return count * waited_us_ / std::max(of, 0.5);
  }

  TimeUs observed_at_ = 0;
  double waited_us_ = 0, requests_ = 0, tokens_ = 0;
};

struct QueueForecast {
  int waiting = 0;     // requests
  int64_t tokens = 0;  // of all waiting requests
  AdmissionRate rate{};
  double reading_us = 0;  // time to prefill the open prompts
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_QUEUE_FORECAST_H_
