// A histogram for scrapes. Observe() is a search and two relaxed additions; it and Read() never
// block, and any thread may call them at any time. A concurrent Read() may miss the latest values.
#ifndef HYDRANT_SCHEDULER_HISTOGRAM_H_
#define HYDRANT_SCHEDULER_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/check.h"

namespace hydrant {

class Histogram {
 public:
  static constexpr size_t kMaxBounds = 23;

  // REQUIRES: ascending, at most kMaxBounds.
  Histogram(std::initializer_list<double> bounds) : num_bounds_(bounds.size()) {
    HYDRANT_CHECK(bounds.size() <= kMaxBounds);
    std::copy(bounds.begin(), bounds.end(), bounds_.begin());
  }

  // Counts the value in the first bucket with a bound not below it, or in the last bucket.
  void Observe(double value) {
    const auto end = bounds_.begin() + num_bounds_;
    const auto bucket = std::lower_bound(bounds_.begin(), end, value) - bounds_.begin();
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  struct Reading {
    size_t num_bounds = 0;
    std::array<double, kMaxBounds> bounds{};
    // per bucket, not cumulative; the last has no bound
    std::array<uint64_t, kMaxBounds + 1> counts{};
    double sum = 0.0;
  };
  Reading Read() const {
    Reading reading{.num_bounds = num_bounds_, .bounds = bounds_};
    for (size_t i = 0; i <= num_bounds_; ++i)
      reading.counts[i] = counts_[i].load(std::memory_order_relaxed);
    reading.sum = sum_.load(std::memory_order_relaxed);
    return reading;
  }

 private:
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(std::atomic<double>::is_always_lock_free);

  const size_t num_bounds_;
  std::array<double, kMaxBounds> bounds_{};
  std::array<std::atomic<uint64_t>, kMaxBounds + 1> counts_{};
  std::atomic<double> sum_{0.0};
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_HISTOGRAM_H_
