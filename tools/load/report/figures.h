// The measures of a load under the keys of `vllm bench serve`'s JSON, which all of our files use.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_FIGURES_H_
#define HYDRANT_TOOLS_LOAD_REPORT_FIGURES_H_

#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "tools/load/run/measures.h"
#include "tools/load/run/server_series.h"
#include "tools/load/run/timeline.h"

namespace hydrant::load {

// request_goodput is null where there are no objectives.
nlohmann::ordered_json FiguresJson(const Measures& measures, bool has_objectives);
// Columns: an array a measure, an element a window; null where nothing happened.
nlohmann::ordered_json TimelineJson(const Timeline& timeline, bool has_objectives);
// An element a page of metrics: {"name", "samples": [{"at_s", "running", ...}], ...}.
nlohmann::ordered_json ServersJson(const std::vector<ServerSeries>& servers);
// {"ttft": 500, ...}, of what is set.
nlohmann::ordered_json ObjectivesJson(const Objectives& objectives);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_FIGURES_H_
