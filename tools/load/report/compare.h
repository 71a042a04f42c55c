// Reports beside each other: every measure, its ratio to the first report's, and which is better.
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

// An element a report everywhere.
struct ComparedMeasure {
  std::string name;
  Better better = Better::kHigher;
  std::vector<std::optional<double>> values = {};

  // To the first; unset where one is not there, or the first is zero.
  std::optional<double> Ratio(size_t report) const;
  // By which share of the first it is worse, negative where it is better; infinite where the first
  // is zero and this is not. Unset where one of the two is not there, or neither is better.
  std::optional<double> WorseBy(size_t report) const;
  // "better", "worse", or nothing where the two are within 2 %.
  const char* Verdict(size_t report) const;
};

// Of whole runs ("all"), or of an arm that all of them have.
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
  std::vector<Setting> settings = {};  // that are not the same in all
  std::vector<Error> errors = {};
  std::string warning = {};  // hit rates differ; empty: they are similar
};

// InvalidArgument where runs and sweeps are mixed, or they have no measure in common.
// REQUIRES: two reports at least.
absl::StatusOr<Comparison> Compare(std::span<const ReportFile> reports);

// By how much a measure may be worse than the first report's.
struct Limit {
  std::string measure;
  double share = 0.0;
  bool required = false;  // it was asked for by name
};
// "10%": of those measures that say most; "p99_ttft_ms:10% output_throughput:5%": of these.
absl::StatusOr<std::vector<Limit>> ParseLimits(std::string_view text);
// A line for each that is worse than that, of whole runs, or of the arms of sweeps. InvalidArgument
// where a measure that was asked for by name is missing in a report.
absl::StatusOr<std::vector<std::string>> FindWorse(const Comparison& comparison,
                                                   std::span<const Limit> limits);

std::string ToText(const Comparison& comparison);
// `worse`: as FindWorse() says.
std::string ToJson(const Comparison& comparison, std::span<const std::string> worse);
std::string ToHtml(const Comparison& comparison, std::span<const ReportFile> reports,
                   std::span<const std::string> worse);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_COMPARE_H_
