#include "tools/load/report/report_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"

namespace hydrant::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kErrorLength = 80;  // bytes of an error without a short name

absl::Status Wrong(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

// Long per-request fields, omitted from pages and comparisons.
const std::set<std::string>& Details() {
  static const auto* const kDetails =
      new std::set<std::string>{"input_lens", "output_lens",     "ttfts",       "itls",
                                "errors",     "generated_texts", "start_times", "latencies"};
  return *kDetails;
}

bool IsTime(const std::string& key) { return absl::EndsWith(key, "_ms"); }

// Measured or counted values; other numbers are settings.
bool IsMeasure(const std::string& key) {
  static const auto* const kCounts = new std::set<std::string>{"duration",
                                                               "completed",
                                                               "failed",
                                                               "faults",
                                                               "unfinished",
                                                               "messages",
                                                               "total_input",
                                                               "total_output",
                                                               "total_input_tokens",
                                                               "total_output_tokens",
                                                               "preemptions",
                                                               "cached_tokens",
                                                               "cache_hits",
                                                               "cache_hit_rate",
                                                               "mean_tokens_per_message",
                                                               "request_goodput",
                                                               "request_goodput:",
                                                               "rtfx",
                                                               "max_output_tokens_per_s",
                                                               "max_concurrent_requests",
                                                               "highest_rate"};
  return IsTime(key) || absl::EndsWith(key, "_throughput") || absl::StartsWith(key, "bytes_") ||
         absl::StartsWith(key, "kv_") || kCounts->count(key) > 0;
}

// Without measurements all times are zero.
bool WasMeasured(const Json& from, const std::string& key) {
  if (!IsTime(key)) return true;
  const std::vector<std::string> parts = absl::StrSplit(key, absl::MaxSplits('_', 1));
  const auto most = from.find("max_" + parts[1]), mean = from.find("mean_" + parts[1]);
  const auto is_zero = [&](const auto& found) {
    return found == from.end() || (found->is_number() && found->template get<double>() == 0.0);
  };
  return !(is_zero(most) && is_zero(mean) && from.at(key) == 0.0);
}

ReportFile::Figures FiguresOf(const Json& from) {
  ReportFile::Figures figures;
  for (const auto& [key, value] : from.items()) {
    if (!value.is_number() || !IsMeasure(key) || !WasMeasured(from, key)) continue;
    // The key of some vllm versions.
    figures[key == "request_goodput:" ? "request_goodput" : key] = value.get<double>();
  }
  return figures;
}

std::string Words(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void AddSettings(const Json& from, ReportFile* report) {
  static const auto* const kNoSettings =
      new std::set<std::string>{"date", "label", "complete", "kind", "warning"};
  for (const auto& [key, value] : from.items()) {
    if (!value.is_primitive() || value.is_null() || IsMeasure(key) || kNoSettings->count(key) > 0)
      continue;
    report->settings[key] = Words(value);
  }
  if (const auto goodput = from.find("goodput"); goodput != from.end() && !goodput->empty())
    report->settings["goodput"] = goodput->dump();
  const auto options = from.find("options");
  if (options == from.end() || !options->is_object()) return;
  for (const auto& [key, value] : options->items()) {
    const bool is_of_reports = key == "--json" || key == "--csv" || key == "--html" ||
                               key == "--report" || key == "--label" || key == "--quiet";
    if (!is_of_reports) report->settings[key] = Words(value);
  }
}

// The last line of an error, the informative one of a traceback.
std::string ShortError(const std::string& error) {
  const size_t end = error.find_last_not_of(" \r\n");
  if (end == std::string::npos) return {};
  const size_t line = error.find_last_of('\n', end);
  const size_t begin = line == std::string::npos ? 0 : line + 1;
  return error.substr(begin, std::min(kErrorLength, end + 1 - begin));
}

void AddErrors(const Json& from, ReportFile* report) {
  if (const auto counts = from.find("error_counts"); counts != from.end() && counts->is_object()) {
    for (const auto& [error, count] : counts->items()) {
      if (count.is_number()) report->errors[error] = count.get<int64_t>();
    }
    return;
  }
  const auto errors = from.find("errors");
  if (errors == from.end() || !errors->is_array()) return;
  for (const Json& error : *errors) {
    if (!error.is_string()) continue;
    if (std::string words = ShortError(error.get<std::string>()); !words.empty())
      ++report->errors[words];
  }
}

void AddQuality(const Json& from, ReportFile* report) {
  const auto quality = from.find("quality");
  if (quality == from.end() || !quality->is_array()) return;
  for (const Json& row : *quality) {
    if (!row.is_object() || !row.contains("name")) continue;
    for (ReportFile::Arm& arm : report->arms) {
      if (Words(row["name"]) != arm.name) continue;
      for (const char* key : {"identical", "before_difference", "matched"}) {
        if (row.contains(key) && row[key].is_number())
          arm.figures[absl::StrCat("quality_", key)] = row[key].get<double>();
      }
    }
  }
}

// The highest rate that met the objectives, and its results. Latencies are omitted: arms have them
// at different rates.
ReportFile::Figures FiguresOfSweptArm(const Json& arm) {
  ReportFile::Figures figures;
  const auto highest = arm.find("highest_rate");
  if (highest == arm.end() || !highest->is_number()) return figures;
  figures["highest_rate"] = highest->get<double>();
  const auto points = arm.find("points");
  if (points == arm.end() || !points->is_array()) return figures;
  for (const Json& point : *points) {
    if (!point.is_object() || point.value("rate", Json()) != *highest) continue;
    for (const char* key : {"request_goodput", "output_throughput", "cache_hit_rate"}) {
      if (point.contains(key) && point[key].is_number()) figures[key] = point[key].get<double>();
    }
  }
  return figures;
}

absl::Status AddArms(const Json& from, const std::string& path, ReportFile* report) {
  const auto arms = from.find("arms");
  if (arms == from.end()) return absl::OkStatus();
  for (const Json& arm : *arms) {
    if (!arm.is_object() || !arm.contains("name") || !arm["name"].is_string())
      return Wrong(path, "arms: each is an object with a name");
    report->arms.push_back({arm["name"].get<std::string>(),
                            report->is_sweep ? FiguresOfSweptArm(arm) : FiguresOf(arm)});
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& path) {
  if (text.empty()) return Wrong(path, "it is empty");
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {  // the only way to get the position
    const size_t end = std::min(text.size(), error.byte);
    return Wrong(path, absl::StrCat("line ", 1 + std::count(text.begin(), text.begin() + end, '\n'),
                                    ": not JSON"));
  }
}

}  // namespace

absl::StatusOr<ReportFile> ParseReport(std::string_view text, const std::string& path) {
  HYDRANT_ASSIGN_OR_RETURN(Json json, ParseJson(text, path));
  if (!json.is_object()) return Wrong(path, "it is no report: not a JSON object");
  ReportFile report{.name = path};
  report.is_sweep = json.value("kind", Json()) == "sweep";
  for (const char* field : {"completed", "duration"}) {
    if (!report.is_sweep && !(json.contains(field) && json[field].is_number()))
      return Wrong(path, absl::StrCat("it is no report: ", field, " is missing, or no number"));
  }
  if (const Json label = json.value("label", Json());
      label.is_string() && !label.get_ref<const std::string&>().empty())
    report.name = label.get<std::string>();
  report.complete = json.value("complete", Json(true)) != false;
  if (!report.is_sweep) {
    report.figures = FiguresOf(json);
    if (report.figures.count("failed") == 0 && json.value("num_prompts", Json()).is_number())
      report.figures["failed"] =
          json["num_prompts"].get<double>() - json["completed"].get<double>();
  }
  HYDRANT_RETURN_IF_ERROR(AddArms(json, path, &report));
  AddQuality(json, &report);
  AddSettings(json, &report);
  AddErrors(json, &report);
  for (const std::string& detail : Details()) json.erase(detail);
  json["name"] = report.name;
  report.summary = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return report;
}

absl::StatusOr<ReportFile> ReadReport(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return ParseReport(text, path);
}

}  // namespace hydrant::load
