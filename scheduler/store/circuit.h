// Whether something outside of the process is worth asking. The circuit opens after failures in a
// row: then nobody asks, but for one caller after each pause, and it closes when an answer comes.
// The pauses grow from 1 to 32 seconds. Thread safe; no call blocks.
#ifndef HYDRANT_SCHEDULER_STORE_CIRCUIT_H_
#define HYDRANT_SCHEDULER_STORE_CIRCUIT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>

#include "absl/status/status.h"

namespace hydrant {

class Circuit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Hears of each change, one call at a time, on the thread that reports what caused it. Not OK:
  // the circuit has opened, and why. OK: it has closed. It must not block.
  using OnChange = std::function<void(const absl::Status&)>;

  // failures: in a row, that open it.
  explicit Circuit(int failures, OnChange on_change = {});

  // OK: ask, and report what comes of it. Else why the circuit is open.
  absl::Status Enter(Time now);
  // Whether Enter() would say no.
  bool Refuses(Time now) const;
  void Succeeded();
  void Failed(const absl::Status& why, Time now);

  bool is_open() const { return open_; }
  uint64_t openings() const { return openings_; }

 private:
  const int most_failures_;
  const OnChange on_change_;
  std::atomic<bool> open_{false};
  std::atomic<uint64_t> openings_{0};

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  int failures_ = 0;  // in a row
  absl::Status why_;
  std::chrono::seconds pause_{0};
  Time next_;            // when one caller may ask, while it is open
  bool trying_ = false;  // that caller has not reported yet
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_CIRCUIT_H_
