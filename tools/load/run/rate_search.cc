#include "tools/load/run/rate_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hydrant::load {
namespace {

// Rounds to four digits, which is enough for bounds one percent apart.
double Readable(double rate) {
  const double unit = std::pow(10.0, std::floor(std::log10(rate)) - 3.0);
  return std::round(rate / unit) * unit;
}

absl::Status Wrong(const char* option, double value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", value, " is outside ", range));
}

}  // namespace

absl::Status CheckRateSearch(const RateSearchOptions& options) {
  for (const double rate : options.rates) {
    if (!(rate > 0.0 && rate <= 1e6)) return Wrong("rates", rate, "(0, 1e6]");
  }
  if (!(options.least > 0.0 && options.least <= 1e6))
    return Wrong("min-rate", options.least, "(0, 1e6]");
  if (!(options.most >= options.least && options.most <= 1e6))
    return Wrong("max-rate", options.most, "[min-rate, 1e6]");
  if (!(options.first >= options.least && options.first <= options.most))
    return Wrong("first-rate", options.first, "[min-rate, max-rate]");
  if (!(options.resolution >= 0.01 && options.resolution <= 1.0))
    return Wrong("resolution", options.resolution, "[0.01, 1]");
  return absl::OkStatus();
}

std::optional<double> RateSearch::Next() const {
  if (!options_.rates.empty())
    return added_ < options_.rates.size() ? std::optional(options_.rates[added_]) : std::nullopt;
  const std::optional<double> met = highest_met();
  if (!met && !lowest_failed_) return options_.first;
  if (!lowest_failed_)
    return *met < options_.most ? std::optional(std::min(2 * *met, options_.most)) : std::nullopt;
  if (!met) {
    return *lowest_failed_ > options_.least
               ? std::optional(std::max(*lowest_failed_ / 2, options_.least))
               : std::nullopt;
  }
  if (*lowest_failed_ <= *met * (1 + options_.resolution)) return std::nullopt;
  return Readable(std::sqrt(*met * *lowest_failed_));
}

void RateSearch::Add(double rate, bool met) {
  ++added_;
  if (met) {
    met_.push_back(rate);
  } else {
    lowest_failed_ = std::min(rate, lowest_failed_.value_or(rate));
  }
}

std::optional<double> RateSearch::highest_met() const {
  std::optional<double> highest;
  for (const double rate : met_) {
    if ((!lowest_failed_ || rate < *lowest_failed_) && (!highest || rate > *highest))
      highest = rate;
  }
  return highest;
}

}  // namespace hydrant::load
