// Reads a report: of hydrant-load, of its sweep, or of `vllm bench serve`, which has a subset of
// the fields.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_REPORT_FILE_H_
#define HYDRANT_TOOLS_LOAD_REPORT_REPORT_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant::load {

struct ReportFile {
  // Measures by their JSON keys; absent if not measured.
  using Figures = std::map<std::string, double>;
  struct Arm {
    std::string name;
    Figures figures;
  };

  std::string name;  // its label, else its path
  bool is_sweep = false;
  bool complete = true;
  Figures figures = {};  // empty for a sweep: its arms have the sustained rate
  std::vector<Arm> arms = {};
  std::map<std::string, std::string> settings = {};
  std::map<std::string, int64_t> errors = {};
  std::string summary = {};  // its JSON without per-request data
};

// NotFound names the path; InvalidArgument path, line or field.
absl::StatusOr<ReportFile> ReadReport(const std::string& path);
absl::StatusOr<ReportFile> ParseReport(std::string_view text, const std::string& path);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_REPORT_FILE_H_
