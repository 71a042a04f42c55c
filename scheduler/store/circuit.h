// A circuit breaker for a service outside of the process. It opens after failures in a row: then
// calls are refused, except one call after each pause, and it closes when an answer comes. The
// pauses grow from 1 to 32 seconds. Thread safe; no call blocks.
#ifndef HYDRANT_SCHEDULER_STORE_CIRCUIT_H_
#define HYDRANT_SCHEDULER_STORE_CIRCUIT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "kernels/mutex.h"

namespace hydrant {

class Circuit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Called at each change, one call at a time, on the thread that reports the result. Not OK: the
  // circuit breaker has opened, with the reason. OK: it has closed. Must not block, and must not
  // call this circuit breaker's Enter(), Refuses(), Succeeded() or Failed().
  using OnChange = std::function<void(const absl::Status&)>;

  // failures: the number of failures in a row that opens it.
  explicit Circuit(int failures, OnChange on_change = {});

  // OK: call the service and report the result. UNAVAILABLE, with the reason: the call is refused.
  absl::Status Enter(Time now);
  // Whether Enter() would refuse a call.
  bool Refuses(Time now) const;
  void Succeeded();
  void Failed(const absl::Status& why, Time now);

  bool is_open() const { return open_; }
  uint64_t openings() const { return openings_; }

 private:
  const int max_failures_;
  const OnChange on_change_;
  std::atomic<bool> open_{false};
  std::atomic<uint64_t> openings_{0};

  mutable Mutex mutex_;
  int failures_ HYDRANT_GUARDED_BY(mutex_) = 0;  // in a row
  absl::Status why_ HYDRANT_GUARDED_BY(mutex_);
  std::chrono::seconds pause_ HYDRANT_GUARDED_BY(mutex_){0};
  Time next_ HYDRANT_GUARDED_BY(mutex_);            // while open: time of the next trying call
  bool trying_ HYDRANT_GUARDED_BY(mutex_) = false;  // the trying call has not reported yet
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_CIRCUIT_H_
