// Predicts the peak number of pages of the running sequences, each at its expected length: all
// grow by a token a step, and free their pages when they end. (The peak over the ends of the
// requests: Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS
// 2025.) Plain arithmetic.
#ifndef HYDRANT_SCHEDULER_POOL_FORECAST_H_
#define HYDRANT_SCHEDULER_POOL_FORECAST_H_

#include <algorithm>
#include <vector>

namespace hydrant {

class PoolForecast {
 public:
  struct Holder {
    double pages = 0;      // held now
    double most = 0;       // maximum
    double per_token = 0;  // growth per token
    double tokens = 0;     // until it ends
  };

  void Clear() {
    holders_.clear();
    sum_of_max_ = 0;
  }
  void Add(const Holder& holder) {
    holders_.push_back(holder);
    sum_of_max_ += holder.most;
  }
  // Whether the peak is at most `pages`. Sorts the holders.
  bool Fits(double pages) {
    if (sum_of_max_ <= pages) return true;
    std::sort(holders_.begin(), holders_.end(),
              [](const Holder& a, const Holder& b) { return a.tokens > b.tokens; });
    // The peak is just before one of them ends; those that end later precede it in the order.
    for (size_t last = 0; last < holders_.size(); ++last) {
      double held = 0;
      for (size_t i = 0; i <= last; ++i) held += HeldAfter(holders_[last].tokens, holders_[i]);
      if (held > pages) return false;
    }
    return true;
  }

 private:
  static double HeldAfter(double tokens, const Holder& holder) {
    return std::min(holder.most, holder.pages + tokens * holder.per_token);
  }

  std::vector<Holder> holders_;
  double sum_of_max_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_POOL_FORECAST_H_
