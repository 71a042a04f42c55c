// State of the replicas over time, in a few hundred equal windows that grow with the run. Sums over
// replicas. One thread.
#ifndef HYDRANT_TOOLS_SIMULATOR_TIMELINE_H_
#define HYDRANT_TOOLS_SIMULATOR_TIMELINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/request.h"

namespace hydrant::sim {

class Timeline {
 public:
  struct Window {
    // Integrals over time, in microseconds.
    double running = 0, waiting = 0, pages = 0;
    int64_t arrived = 0, ended = 0, output_tokens = 0;

    Window& operator+=(const Window& other) {
      running += other.running;
      waiting += other.waiting;
      pages += other.pages;
      arrived += other.arrived;
      ended += other.ended;
      output_tokens += other.output_tokens;
      return *this;
    }
  };

  // Adds to the window at `at`.
  void Add(TimeUs at, const Window& what) {
    while (at / width_us_ >= static_cast<TimeUs>(kMaxWindows)) HalveWindows();
    const auto index = static_cast<size_t>(at / width_us_);
    if (index >= windows_.size()) windows_.resize(index + 1);
    windows_[index] += what;
  }
  TimeUs width_us() const { return width_us_; }
  const std::vector<Window>& windows() const { return windows_; }

 private:
  static constexpr size_t kMaxWindows = 400;

  void HalveWindows() {
    for (size_t i = 0; 2 * i < windows_.size(); ++i) {
      Window both = windows_[2 * i];
      if (2 * i + 1 < windows_.size()) both += windows_[2 * i + 1];
      windows_[i] = both;
    }
    windows_.resize((windows_.size() + 1) / 2);
    width_us_ *= 2;
  }

  TimeUs width_us_ = 10'000;
  std::vector<Window> windows_;
};

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_TIMELINE_H_
