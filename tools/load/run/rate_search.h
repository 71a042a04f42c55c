// Searches the highest sustainable rate: doubles until one fails, or halves if the first fails,
// then bisects. The caller runs the probes. Plain data: an interrupted search is resumed by
// replaying its results.
#ifndef HYDRANT_TOOLS_LOAD_RUN_RATE_SEARCH_H_
#define HYDRANT_TOOLS_LOAD_RUN_RATE_SEARCH_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace hydrant::load {

// Rates are requests per second.
struct RateSearchOptions {
  double first = 1.0;
  double least = 0.01;
  double most = 1e4;
  double resolution = 0.1;         // stops when the bounds are within this fraction
  std::vector<double> rates = {};  // tries exactly these, in this order, without a search
};
// InvalidArgument names the option.
absl::Status CheckRateSearch(const RateSearchOptions& options);

class RateSearch {
 public:
  // REQUIRES: CheckRateSearch(options).ok().
  explicit RateSearch(RateSearchOptions options) : options_(std::move(options)) {}

  // The next rate to try; nullopt: the search is over.
  std::optional<double> Next() const;
  // Records a result.
  void Add(double rate, bool met);

  // The lowest failed rate; unset: none failed.
  std::optional<double> lowest_failed() const { return lowest_failed_; }
  // The highest met rate below it; unset: none.
  std::optional<double> highest_met() const;

 private:
  RateSearchOptions options_;
  std::vector<double> met_;
  std::optional<double> lowest_failed_;
  size_t added_ = 0;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_RATE_SEARCH_H_
