// Means, medians, and numbers rounded for plots.
#ifndef HYDRANT_TOOLS_EVAL_NUMBERS_H_
#define HYDRANT_TOOLS_EVAL_NUMBERS_H_

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "fmt/format.h"

namespace hydrant::eval {

// Rounded to plotting precision.
inline double Short(double value) {
  return std::isfinite(value) ? std::stod(fmt::format("{:.4g}", value)) : 0.0;
}

inline nlohmann::json ShortAll(const std::vector<double>& values) {
  nlohmann::json all = nlohmann::json::array();
  for (const double value : values) all.push_back(Short(value));
  return all;
}

inline double Mean(const std::vector<double>& values) {
  return values.empty() ? 0.0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Number of entries for a share of the tokens; at least two.
inline int Entries(double share, int tokens) {
  return std::max(2, static_cast<int>(std::ceil(share * tokens)));
}

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_NUMBERS_H_
