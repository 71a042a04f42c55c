// Figures of a load under the JSON keys of `vllm bench serve`, used by all report files.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_FIGURES_H_
#define HYDRANT_TOOLS_LOAD_REPORT_FIGURES_H_

#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "tools/load/run/measures.h"
#include "tools/load/run/server_series.h"
#include "tools/load/run/timeline.h"

namespace hydrant::load {

// request_goodput is null without objectives.
nlohmann::ordered_json FiguresJson(const Measures& measures, bool has_objectives);
// Columns: one array per measure with an element per window; null if empty.
nlohmann::ordered_json TimelineJson(const Timeline& timeline, bool has_objectives);
// One element per metrics page: {"name", "samples": [{"at_s", "running", ...}], ...}.
nlohmann::ordered_json ServersJson(const std::vector<ServerSeries>& servers);
// {"ttft": 500, ...}, only the set ones.
nlohmann::ordered_json ObjectivesJson(const Objectives& objectives);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_FIGURES_H_
