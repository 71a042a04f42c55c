// One HTML page with plots that needs nothing else, of a run, of several beside each other, of a
// sweep. What it shows is data, so that text of a server's or a user's is never markup.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_REPORT_PAGE_H_
#define HYDRANT_TOOLS_LOAD_REPORT_REPORT_PAGE_H_

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace hydrant::load {

// `data`: {"title"; "runs": reports as tools/load/report/report.h writes them, each with a "name";
// "sweeps": the same, of tools/load/report/sweep_report.h; "comparison": of
// tools/load/report/compare.h}, any of them absent.
std::string ReportPage(const nlohmann::ordered_json& data);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_REPORT_PAGE_H_
