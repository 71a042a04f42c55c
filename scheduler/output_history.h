// How much requests generate, of what they may and in tokens, by those that have ended lately. Says
// how far one that runs is likely to go. Plain arithmetic, no clock.
//
// Both are asked, and the less is believed. The share of what they may fits clients that ask for as
// much as they want, tokens fit those that name no limit; where both kinds come, either alone would
// take the second kind for very long.
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
  bool IsKnown() const { return tokens_.size() >= kEnough; }
  // The mean of those that may generate `most`; all of it where nothing is known.
  double MeanOf(int64_t most) const;
  // Tokens that one which has generated so many will generate yet: the mean over those that went
  // further; none did, or too little is known: 0. REQUIRES: most > 0
  double RestOf(int64_t generated, int64_t most) const;

 private:
  static constexpr size_t kEnough = 8, kMost = 64;

  // The last values, the oldest overwritten.
  class Window {
   public:
    void Add(double value);
    size_t size() const { return size_; }
    double Mean() const { return sum_from_[0] / static_cast<double>(size_); }
    // Of the mean of the values above `value`, what it is above it; 0: there are none.
    double MeanExcess(double value) const;

   private:
    std::array<double, kMost> values_ = {};
    std::array<double, kMost> sorted_ = {};        // the same, ascending
    std::array<double, kMost + 1> sum_from_ = {};  // of sorted_[i] and all above it
    size_t size_ = 0, next_ = 0;
  };

  Window shares_;  // of what they might, in (0, 1]
  Window tokens_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_OUTPUT_HISTORY_H_
