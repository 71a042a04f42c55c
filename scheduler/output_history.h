// Statistics of the output lengths of recently ended requests, in tokens and as shares of their
// limits; predicts how many tokens a running request will generate. Plain arithmetic, no clock.
//
// The smaller of two estimates is used. Shares suit clients with accurate limits, tokens suit
// clients without limits; with both kinds present, either estimate alone would overestimate the
// second kind.
#ifndef HYDRANT_SCHEDULER_OUTPUT_HISTORY_H_
#define HYDRANT_SCHEDULER_OUTPUT_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace hydrant {

class OutputHistory {
 public:
  // Records a request that ended by itself. REQUIRES: most > 0
  void Observe(int64_t generated, int64_t most);
  // Whether enough requests have ended.
  bool IsKnown() const { return tokens_.size() >= kEnough; }
  // Expected tokens of a request that may generate `most`; `most` if unknown.
  double MeanOf(int64_t most) const;
  // Expected further tokens of a request that has generated `generated`: the mean over the requests
  // that went further; 0 if there was none or too little is known. REQUIRES: most > 0
  double RestOf(int64_t generated, int64_t most) const;

 private:
  static constexpr size_t kEnough = 8, kLimit = 64;

  // The last kLimit values.
  class Window {
   public:
    void Add(double value);
    size_t size() const { return size_; }
    double Mean() const { return sum_from_[0] / static_cast<double>(size_); }
    // The mean of the values above `value`, minus `value`; 0 if there are none.
    double MeanExcess(double value) const;

   private:
    std::array<double, kLimit> values_ = {};
    std::array<double, kLimit> sorted_ = {};        // ascending
    std::array<double, kLimit + 1> sum_from_ = {};  // sum of sorted_[i] and all after it
    size_t size_ = 0, next_ = 0;
  };

  Window shares_;  // of their limits, in (0, 1]
  Window tokens_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_OUTPUT_HISTORY_H_
