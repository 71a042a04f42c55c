// A self-contained HTML page with plots, of a run, of several compared runs, or of a sweep. Its
// content is data, so that text of a server or user is never markup.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_REPORT_PAGE_H_
#define HYDRANT_TOOLS_LOAD_REPORT_REPORT_PAGE_H_

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace hydrant::load {

// `data`: {"title"; "runs": reports of tools/load/report/report.h, each with a "name"; "sweeps":
// reports of tools/load/report/sweep_report.h; "comparison": of tools/load/report/compare.h}, all
// optional.
std::string ReportPage(const nlohmann::ordered_json& data);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_REPORT_PAGE_H_
