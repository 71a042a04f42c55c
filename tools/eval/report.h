// Reports: a self-contained page with plots, a CSV table, a table for the terminal.
#ifndef HYDRANT_TOOLS_EVAL_REPORT_H_
#define HYDRANT_TOOLS_EVAL_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/eval/results.h"

namespace hydrant::eval {

struct ReportHead {
  std::string title;
  std::string settings;  // one line
  int num_layers = 0;
  int num_kv_heads = 0;
  int context = 0;                        // tokens
  bool complete = true;                   // false: interrupted
  std::vector<std::string> winners = {};  // a sentence each
};

// `anatomy`: one element per text, from tools/eval/pictures.h; may be empty. `kept_text`: KeptText's;
// null: none.
std::string HtmlReport(const ReportHead& head, const std::vector<Summary>& summaries,
                       const std::vector<Difference>& differences = {},
                       const nlohmann::json& anatomy = nlohmann::json::array(),
                       const nlohmann::json& kept_text = nullptr);
std::string CsvReport(const std::vector<Summary>& summaries);
// One table per task: a row per arm, the best first, a column per budget.
std::string TextReport(const std::vector<Summary>& summaries);

// The same two for paired differences; clear differences are marked.
std::string CsvReport(const std::vector<Difference>& differences);
std::string TextReport(const std::vector<Difference>& differences);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_REPORT_H_
