#include "tools/load/report/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "tools/load/report/hit_rates.h"

namespace hydrant::load {
namespace {

// Smaller differences count as equal.
constexpr double kSame = 0.02;

// In display order.
constexpr const char* kHigherIsBetter[] = {"highest_rate",
                                           "request_throughput",
                                           "request_goodput",
                                           "output_throughput",
                                           "total_token_throughput",
                                           "quality_identical",
                                           "quality_before_difference",
                                           "quality_matched"};
constexpr const char* kLowerIsBetter[] = {"failed", "preemptions"};
constexpr const char* kNeitherIsBetter[] = {"cache_hit_rate"};
constexpr const char* kKinds[] = {"ttft", "tpot", "itl", "e2el", "queue"};
// Measures of a limit without a name.
constexpr const char* kLimitedByDefault[] = {
    "highest_rate", "request_throughput", "request_goodput", "output_throughput",
    "failed",       "p99_ttft_ms",        "p99_tpot_ms",     "p99_e2el_ms"};

// "p99_ttft_ms": indices of its kind and its quantile; unset: not a compared time.
std::optional<std::pair<size_t, double>> PlaceOfTime(const std::string& key) {
  const size_t gap = key.find('_');
  if (gap == std::string::npos || !absl::EndsWith(key, "_ms")) return std::nullopt;
  const std::string quantile = key.substr(0, gap);
  const std::string kind = key.substr(gap + 1, key.size() - gap - 4);
  const auto* const found = std::find(std::begin(kKinds), std::end(kKinds), kind);
  if (found == std::end(kKinds)) return std::nullopt;
  double place = 0.0;
  if (quantile == "mean") {
    place = -1.0;
  } else if (quantile == "median") {
    place = 50.0;
  } else if (quantile == "max") {
    place = 101.0;
  } else if (quantile[0] != 'p' || !absl::SimpleAtod(quantile.substr(1), &place)) {
    return std::nullopt;
  }
  return std::make_pair(static_cast<size_t>(found - std::begin(kKinds)), place);
}

ComparedMeasure Collect(const std::string& name, Better better,
                        std::span<const ReportFile::Figures* const> figures) {
  ComparedMeasure measure{.name = name, .better = better};
  for (const ReportFile::Figures* of : figures) {
    const auto found = of->find(name);
    measure.values.push_back(found == of->end() ? std::nullopt : std::optional(found->second));
  }
  return measure;
}

ComparedPart ComparePart(const std::string& title,
                         std::span<const ReportFile::Figures* const> figures) {
  ComparedPart part{.title = title};
  const auto add = [&](const std::string& name, Better better) {
    ComparedMeasure measure = Collect(name, better, figures);
    const auto there = [](const std::optional<double>& value) { return value.has_value(); };
    if (std::count_if(measure.values.begin(), measure.values.end(), there) > 1)
      part.measures.push_back(std::move(measure));
  };
  for (const char* name : kHigherIsBetter) add(name, Better::kHigher);
  for (const char* name : kLowerIsBetter) add(name, Better::kLower);
  for (const char* name : kNeitherIsBetter) add(name, Better::kNeither);
  std::set<std::tuple<size_t, double, std::string>> times;
  for (const ReportFile::Figures* of : figures) {
    for (const auto& [key, value] : *of) {
      if (const auto place = PlaceOfTime(key)) times.insert({place->first, place->second, key});
    }
  }
  for (const auto& [kind, place, key] : times) add(key, Better::kLower);
  return part;
}

void CompareArms(std::span<const ReportFile> reports, Comparison* comparison) {
  for (const ReportFile::Arm& arm : reports[0].arms) {
    std::vector<const ReportFile::Figures*> figures;
    for (const ReportFile& report : reports) {
      for (const ReportFile::Arm& other : report.arms) {
        if (other.name != arm.name) continue;
        figures.push_back(&other.figures);
        break;
      }
    }
    if (figures.size() < reports.size()) continue;
    ComparedPart part = ComparePart(arm.name, figures);
    if (!part.measures.empty()) comparison->parts.push_back(std::move(part));
  }
}

// The first part with different hit rates in the reports; empty: none.
std::string WarningOf(const Comparison& comparison) {
  for (const ComparedPart& part : comparison.parts) {
    for (const ComparedMeasure& measure : part.measures) {
      if (measure.name != "cache_hit_rate") continue;
      std::vector<HitRate> rates;
      for (size_t i = 0; i < measure.values.size(); ++i) {
        if (measure.values[i]) rates.push_back({comparison.names[i], *measure.values[i]});
      }
      if (std::string warning = WarnOfHitRates(rates); !warning.empty()) return warning;
    }
  }
  return {};
}

void CompareSettings(std::span<const ReportFile> reports, Comparison* comparison) {
  std::set<std::string> names;
  for (const ReportFile& report : reports) {
    for (const auto& [name, value] : report.settings) names.insert(name);
  }
  for (const std::string& name : names) {
    Comparison::Setting setting{.name = name};
    for (const ReportFile& report : reports) {
      const auto found = report.settings.find(name);
      setting.values.push_back(found == report.settings.end() ? std::nullopt
                                                              : std::optional(found->second));
    }
    const auto differs = [&](const auto& value) { return value != setting.values[0]; };
    if (std::any_of(setting.values.begin(), setting.values.end(), differs))
      comparison->settings.push_back(std::move(setting));
  }
}

void CompareErrors(std::span<const ReportFile> reports, Comparison* comparison) {
  std::map<std::string, std::vector<int64_t>> errors;
  for (size_t i = 0; i < reports.size(); ++i) {
    for (const auto& [name, count] : reports[i].errors) {
      errors[name].resize(reports.size());
      errors[name][i] = count;
    }
  }
  for (auto& [name, counts] : errors) comparison->errors.push_back({name, std::move(counts)});
}

}  // namespace

std::optional<double> ComparedMeasure::Ratio(size_t report) const {
  if (!values[0] || !values[report] || *values[0] == 0.0) return std::nullopt;
  return *values[report] / *values[0];
}

std::optional<double> ComparedMeasure::WorseBy(size_t report) const {
  if (!values[0] || !values[report] || better == Better::kNeither) return std::nullopt;
  const double more = *values[report] - *values[0];
  const double worse = better == Better::kHigher ? -more : more;
  if (worse == 0.0) return 0.0;
  if (*values[0] == 0.0) return std::copysign(std::numeric_limits<double>::infinity(), worse);
  return worse / std::abs(*values[0]);
}

const char* ComparedMeasure::Verdict(size_t report) const {
  const std::optional<double> worse = WorseBy(report);
  if (!worse || std::abs(*worse) < kSame) return "";
  return *worse > 0.0 ? "worse" : "better";
}

absl::StatusOr<Comparison> Compare(std::span<const ReportFile> reports) {
  Comparison comparison;
  std::vector<const ReportFile::Figures*> figures;
  for (const ReportFile& report : reports) {
    if (report.is_sweep != reports[0].is_sweep) {
      return absl::InvalidArgumentError(absl::StrCat(reports[0].name, " and ", report.name,
                                                     ": a run and a sweep cannot be compared"));
    }
    comparison.names.push_back(report.name);
    comparison.complete.push_back(report.complete);
    figures.push_back(&report.figures);
  }
  ComparedPart all = ComparePart("all", figures);
  if (!all.measures.empty()) comparison.parts.push_back(std::move(all));
  CompareArms(reports, &comparison);
  // Sweeps of one policy each, possibly against different servers.
  if (comparison.parts.empty() && reports[0].is_sweep) {
    figures.clear();
    for (const ReportFile& report : reports) {
      if (report.arms.size() == 1) figures.push_back(&report.arms[0].figures);
    }
    if (figures.size() == reports.size())
      comparison.parts.push_back(ComparePart("the one arm of each", figures));
  }
  if (comparison.parts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(reports[0].name, ": has no measure or arm in common with the others"));
  }
  CompareSettings(reports, &comparison);
  CompareErrors(reports, &comparison);
  comparison.warning = WarningOf(comparison);
  return comparison;
}

absl::StatusOr<std::vector<Limit>> ParseLimits(std::string_view text) {
  std::vector<Limit> limits;
  const std::vector<std::string> parts = absl::StrSplit(absl::string_view(text.data(), text.size()),
                                                        absl::ByAnyChar(" ,"), absl::SkipEmpty());
  for (const std::string& part : parts) {
    const size_t colon = part.find(':');
    const std::string number = colon == std::string::npos ? part : part.substr(colon + 1);
    double percent = 0.0;
    if (!absl::EndsWith(number, "%") || colon == 0 ||
        !absl::SimpleAtod(number.substr(0, number.size() - 1), &percent) ||
        !(percent >= 0.0 && percent <= 1e6)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "fail-if-worse: '", part, "' is no limit; 10%, or a measure's as p99_ttft_ms:10%"));
    }
    if (colon != std::string::npos) {
      limits.push_back({part.substr(0, colon), percent / 100.0, /*required=*/true});
      continue;
    }
    for (const char* measure : kLimitedByDefault) limits.push_back({measure, percent / 100.0});
  }
  return limits;
}

absl::StatusOr<std::vector<std::string>> FindWorse(const Comparison& comparison,
                                                   std::span<const Limit> limits) {
  std::vector<std::string> worse;
  // The arms of a run are parts of its total.
  const size_t parts = comparison.parts[0].title == "all" ? 1 : comparison.parts.size();
  for (const Limit& limit : limits) {
    for (size_t p = 0; p < parts; ++p) {
      const ComparedPart& part = comparison.parts[p];
      const auto measure =
          std::find_if(part.measures.begin(), part.measures.end(),
                       [&](const ComparedMeasure& m) { return m.name == limit.measure; });
      for (size_t i = 1; i < comparison.names.size(); ++i) {
        const std::optional<double> by =
            measure == part.measures.end() ? std::nullopt : measure->WorseBy(i);
        if (!by && limit.required) {
          return absl::InvalidArgumentError(absl::StrCat("fail-if-worse: ", limit.measure,
                                                         " is not in both ", comparison.names[0],
                                                         " and ", comparison.names[i]));
        }
        if (!by || *by <= limit.share) continue;
        worse.push_back(fmt::format(
            "{}{} of {} is {:.4g} against {:.4g}: worse by {:.1f} %, and {:g} % are allowed",
            parts > 1 ? part.title + ": " : "", limit.measure, comparison.names[i],
            *measure->values[i], *measure->values[0], 100 * *by, 100 * limit.share));
      }
    }
  }
  return worse;
}

}  // namespace hydrant::load
