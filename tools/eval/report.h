// What people look at: a page with plots that needs nothing else, a table for spreadsheets, one for
// the terminal.
#ifndef HYDRANT_TOOLS_EVAL_REPORT_H_
#define HYDRANT_TOOLS_EVAL_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/eval/results.h"

namespace hydrant::eval {

struct ReportHead {
  std::string title;
  std::string settings;  // a line
  int num_layers = 0;
  int num_kv_heads = 0;
  int context = 0;       // tokens
  bool complete = true;  // false: the run was interrupted
};

// `anatomy`: of each text, as tools/eval/pictures.h draws it; an empty array: of none.
std::string HtmlReport(const ReportHead& head, const std::vector<Summary>& summaries,
                       const std::vector<Difference>& differences = {},
                       const nlohmann::json& anatomy = nlohmann::json::array());
std::string CsvReport(const std::vector<Summary>& summaries);
// A task after the other: a row an arm, a column a budget.
std::string TextReport(const std::vector<Summary>& summaries);

// The same two of paired differences; what is clearly better or worse is marked.
std::string CsvReport(const std::vector<Difference>& differences);
std::string TextReport(const std::vector<Difference>& differences);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_REPORT_H_
