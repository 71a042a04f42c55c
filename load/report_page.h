// One HTML page with plots that needs nothing else, of a run, of several beside each other, of a
// sweep. What it shows is data, so that text of a server's or a user's is never markup.
#ifndef HYDRANT_LOAD_REPORT_PAGE_H_
#define HYDRANT_LOAD_REPORT_PAGE_H_

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace hydrant {

// `data`: {"title"; "runs": reports as load/report.h writes them, each with a "name";
// "sweeps": likewise, of load/sweep_report.h; "comparison": of load/compare.h}, any of them absent.
std::string ReportPage(const nlohmann::ordered_json& data);

}  // namespace hydrant

#endif  // HYDRANT_LOAD_REPORT_PAGE_H_
