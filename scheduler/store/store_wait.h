// The time limit of a caller that waits for a store.
#ifndef HYDRANT_SCHEDULER_STORE_STORE_WAIT_H_
#define HYDRANT_SCHEDULER_STORE_STORE_WAIT_H_

#include <chrono>
#include <stop_token>
#include <utility>

namespace hydrant {

using StoreDeadline = std::chrono::steady_clock::time_point;

// A wait ends at the deadline, or when `stop` is requested because the client has disconnected.
struct StoreWait {
  StoreDeadline deadline;
  std::stop_token stop = {};

  static StoreWait For(std::chrono::milliseconds time, std::stop_token stop = {}) {
    return {std::chrono::steady_clock::now() + time, std::move(stop)};
  }
};

// Time that running calls get if an archive is destroyed without Stop().
inline constexpr std::chrono::milliseconds kStoreGrace{1'000};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STORE_STORE_WAIT_H_
