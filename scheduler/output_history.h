// How much of what they may generate requests do generate, by those that have ended lately. Says
// how far one that runs is likely to go. Plain arithmetic, no clock.
#ifndef HYDRANT_SCHEDULER_OUTPUT_HISTORY_H_
#define HYDRANT_SCHEDULER_OUTPUT_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace hydrant {

class OutputHistory {
 public:
  // A request has ended by itself. REQUIRES: most > 0
  void Observe(int64_t generated, int64_t most);
  // Enough have ended to go by.
  bool IsKnown() const { return size_ >= kEnough; }
  // Of `most`, the mean; all of it where nothing is known.
  double MeanOf(int64_t most) const;
  // Tokens that one which has generated so many will generate yet: the mean over those that went
  // further; none did, or too little is known: 0. REQUIRES: most > 0
  double RestOf(int64_t generated, int64_t most) const;

 private:
  static constexpr size_t kEnough = 8, kMost = 64;

  std::array<double, kMost> shares_ = {};        // of `most`, in (0, 1], oldest overwritten
  std::array<double, kMost> sorted_ = {};        // the same, ascending
  std::array<double, kMost + 1> sum_from_ = {};  // of sorted_[i] and all above it
  size_t size_ = 0, next_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_OUTPUT_HISTORY_H_
