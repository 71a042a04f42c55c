// Parses Prometheus's text format (version 0.0.4).
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_PROMETHEUS_TEXT_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_PROMETHEUS_TEXT_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant::load {

struct PrometheusValues {
  // By name and labels as written: hydrant_pages{state="free"}.
  std::map<std::string, double> values = {};
  std::map<std::string, std::string> types = {};  // by name: "counter", "gauge", ...

  // The sum of a name over all series with `label` (state="free"; "": all); NaN if there is none.
  double Sum(std::string_view name, std::string_view label = "") const;
};

// InvalidArgument names the line.
absl::StatusOr<PrometheusValues> ParsePrometheusText(std::string_view text);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_PROMETHEUS_TEXT_H_
