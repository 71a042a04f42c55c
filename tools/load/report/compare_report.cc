#include <cmath>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "tools/load/report/compare.h"
#include "tools/load/report/report_page.h"

namespace hydrant::load {
namespace {

using Json = nlohmann::ordered_json;

std::string Figure(const std::optional<double>& value) {
  if (!value) return "-";
  return std::abs(*value) >= 1e5 ? fmt::format("{:.0f}", *value) : fmt::format("{:.4g}", *value);
}

// Removes control characters: text of a report must not control the terminal.
std::string Printable(std::string text, size_t most) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > most) text = text.substr(0, most - 2) + "..";
  return text;
}

const char* NameOf(Better better) {
  return better == Better::kHigher ? "higher" : better == Better::kLower ? "lower" : "neither";
}

Json ComparisonJson(const Comparison& comparison, std::span<const std::string> worse) {
  Json json = {{"names", comparison.names},    {"complete", comparison.complete},
               {"sections", Json::array()},    {"settings", Json::array()},
               {"errors", Json::array()},      {"regressions", worse},
               {"warning", comparison.warning}};
  for (const ComparedPart& part : comparison.parts) {
    Json rows = Json::array();
    for (const ComparedMeasure& measure : part.measures) {
      Json values = Json::array(), ratios = Json::array(), verdicts = Json::array();
      for (size_t i = 0; i < measure.values.size(); ++i) {
        const std::optional<double> ratio = i > 0 ? measure.Ratio(i) : std::nullopt;
        values.push_back(measure.values[i] ? Json(*measure.values[i]) : Json());
        ratios.push_back(ratio ? Json(*ratio) : Json());
        verdicts.push_back(i > 0 ? measure.Verdict(i) : "");
      }
      rows.push_back({{"measure", measure.name},
                      {"better", NameOf(measure.better)},
                      {"values", std::move(values)},
                      {"ratios", std::move(ratios)},
                      {"verdicts", std::move(verdicts)}});
    }
    json["sections"].push_back({{"title", part.title}, {"rows", std::move(rows)}});
  }
  for (const Comparison::Setting& setting : comparison.settings) {
    Json values = Json::array();
    for (const auto& value : setting.values) values.push_back(value ? Json(*value) : Json());
    json["settings"].push_back({{"name", setting.name}, {"values", std::move(values)}});
  }
  for (const Comparison::Error& error : comparison.errors)
    json["errors"].push_back({{"name", error.name}, {"counts", error.counts}});
  return json;
}

}  // namespace

std::string ToText(const Comparison& comparison) {
  std::string text;
  for (size_t i = 0; i < comparison.names.size(); ++i) {
    if (!comparison.complete[i])
      text += fmt::format("PARTIAL: {} was broken off.\n", Printable(comparison.names[i], 200));
  }
  constexpr size_t kWide = 26;
  for (const ComparedPart& part : comparison.parts) {
    text += fmt::format("{:<26}", Printable(part.title, 200));
    for (size_t i = 0; i < comparison.names.size(); ++i)
      text += fmt::format(" {:>{}}", Printable(comparison.names[i], kWide), i == 0 ? 14 : kWide);
    text += "\n";
    for (const ComparedMeasure& measure : part.measures) {
      text += fmt::format("  {:<24} {:>14}", measure.name, Figure(measure.values[0]));
      for (size_t i = 1; i < measure.values.size(); ++i) {
        const std::optional<double> ratio = measure.Ratio(i);
        text += fmt::format(" {:>10} {:>8} {:<6}", Figure(measure.values[i]),
                            ratio ? fmt::format("x{:.3f}", *ratio) : "", measure.Verdict(i));
      }
      text += "\n";
    }
  }
  if (!comparison.warning.empty())
    text += fmt::format("WARNING: {}\n", Printable(comparison.warning, 400));
  if (!comparison.errors.empty()) text += "errors\n";
  for (const Comparison::Error& error : comparison.errors) {
    text += "  ";
    for (const int64_t count : error.counts) text += fmt::format("{:>8}", count);
    text += fmt::format("  {}\n", Printable(error.name, 100));
  }
  if (!comparison.settings.empty()) text += "settings that differ\n";
  for (const Comparison::Setting& setting : comparison.settings) {
    text += fmt::format("  {:<24}", setting.name);
    for (const auto& value : setting.values)
      text += fmt::format(" {}", value ? "'" + Printable(*value, 60) + "'" : "-");
    text += "\n";
  }
  return text;
}

std::string ToJson(const Comparison& comparison, std::span<const std::string> worse) {
  return ComparisonJson(comparison, worse).dump(1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

std::string ToHtml(const Comparison& comparison, std::span<const ReportFile> reports,
                   std::span<const std::string> worse) {
  Json data = {{"title", "hydrant-load compare"},
               {"comparison", ComparisonJson(comparison, worse)},
               {"runs", Json::array()},
               {"sweeps", Json::array()}};
  for (const ReportFile& report : reports)
    data[report.is_sweep ? "sweeps" : "runs"].push_back(Json::parse(report.summary));
  return ReportPage(data);
}

}  // namespace hydrant::load
