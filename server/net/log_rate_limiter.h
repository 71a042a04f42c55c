// Rate limiter for log lines: one every ten seconds, others are only counted, so that clients
// cannot fill the log. Use it from one thread.
#ifndef HYDRANT_SERVER_NET_LOG_RATE_LIMITER_H_
#define HYDRANT_SERVER_NET_LOG_RATE_LIMITER_H_

#include <chrono>
#include <cstdint>

namespace hydrant {

class LogRateLimiter {
 public:
  // Counts a line. Returns whether it may be written.
  bool Due();
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_LOG_RATE_LIMITER_H_
