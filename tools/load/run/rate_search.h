// Which rates to try in order to find the highest that is borne: doubled until one is not, halved
// where the first is not, then bisected. Whoever tries them says what came of it. Plain data in,
// plain data out: a search that was broken off is repeated by telling it the same again.
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
  double resolution = 0.1;         // it ends when the two bounds are apart by this share at most
  std::vector<double> rates = {};  // exactly these are tried, in this order, and none is sought
};
// InvalidArgument names the option.
absl::Status CheckRateSearch(const RateSearchOptions& options);

class RateSearch {
 public:
  // REQUIRES: CheckRateSearch(options).ok().
  explicit RateSearch(RateSearchOptions options) : options_(std::move(options)) {}

  // What to try next; nothing: the search is over.
  std::optional<double> Next() const;
  // What came of it.
  void Add(double rate, bool met);

  // The lowest rate that was not borne; unset: all were.
  std::optional<double> lowest_failed() const { return lowest_failed_; }
  // The highest below it that was; unset: none.
  std::optional<double> highest_met() const;

 private:
  RateSearchOptions options_;
  std::vector<double> met_;
  std::optional<double> lowest_failed_;
  size_t added_ = 0;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_RATE_SEARCH_H_
