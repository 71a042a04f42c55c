// Compares reports: every measure, its ratio to the first report's, and which is better.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_COMPARE_H_
#define HYDRANT_TOOLS_LOAD_REPORT_COMPARE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/report/report_file.h"

namespace hydrant::load {

enum class Better : uint8_t { kHigher, kLower, kNeither };

// Vectors have one element per report.
struct ComparedMeasure {
  std::string name;
  Better better = Better::kHigher;
  std::vector<std::optional<double>> values = {};

  // Relative to the first report; unset if a value is missing or the first is zero.
  std::optional<double> Ratio(size_t report) const;
  // The fraction by which it is worse than the first, negative if it is better; infinite if only
  // the first is zero. Unset if a value is missing, or the measure has no direction.
  std::optional<double> WorseBy(size_t report) const;
  // "better", "worse", or "" within 2 %.
  const char* Verdict(size_t report) const;
};

// Whole runs ("all"), or an arm common to all.
struct ComparedPart {
  std::string title;
  std::vector<ComparedMeasure> measures = {};
};

struct Comparison {
  struct Setting {
    std::string name;
    std::vector<std::optional<std::string>> values = {};
  };
  struct Error {
    std::string name;
    std::vector<int64_t> counts = {};
  };

  std::vector<std::string> names = {};
  std::vector<bool> complete = {};
  std::vector<ComparedPart> parts = {};
  std::vector<Setting> settings = {};  // settings that differ
  std::vector<Error> errors = {};
  std::string warning = {};  // hit rates differ; empty: they are similar
};

// InvalidArgument if runs and sweeps are mixed, or no measure is common. REQUIRES: at least two
// reports.
absl::StatusOr<Comparison> Compare(std::span<const ReportFile> reports);

// The allowed degradation of a measure against the first report.
struct Limit {
  std::string measure;
  double share = 0.0;
  bool required = false;  // it was named explicitly
};
// "10%": for the main measures; "p99_ttft_ms:10% output_throughput:5%": for the named ones.
absl::StatusOr<std::vector<Limit>> ParseLimits(std::string_view text);
// A line for each measure beyond its limit, of whole runs or of the arms of sweeps. InvalidArgument
// if a named measure is missing in a report.
absl::StatusOr<std::vector<std::string>> FindWorse(const Comparison& comparison,
                                                   std::span<const Limit> limits);

std::string ToText(const Comparison& comparison);
// `worse`: the result of FindWorse().
std::string ToJson(const Comparison& comparison, std::span<const std::string> worse);
std::string ToHtml(const Comparison& comparison, std::span<const ReportFile> reports,
                   std::span<const std::string> worse);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_COMPARE_H_
