#include "eval/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "eval/report_page.h"
#include "fmt/format.h"

namespace hydrant {
namespace {

using Json = nlohmann::json;

Json ToJson(const Estimate& estimate) {
  return {{"count", estimate.count}, {"mean", estimate.mean}, {"half_width", estimate.half_width}};
}

// In the order of their first appearance.
template <typename Get>
std::vector<std::string> Distinct(const std::vector<Summary>& summaries, const Get& get) {
  std::vector<std::string> names;
  for (const Summary& summary : summaries) {
    if (std::find(names.begin(), names.end(), get(summary)) == names.end())
      names.push_back(get(summary));
  }
  return names;
}

std::string Cell(const Summary& summary) {
  if (summary.retrieval)
    return fmt::format("{:.0f} % of {}", 100 * summary.found.mean, summary.found.count);
  return fmt::format("{:.3f} ±{:.3f}", summary.lost.mean, summary.lost.half_width);
}

}  // namespace

std::string HtmlReport(const ReportHead& head, const std::vector<Summary>& summaries) {
  Json data = {{"title", head.title},       {"settings", head.settings},
               {"layers", head.num_layers}, {"heads", head.num_kv_heads},
               {"context", head.context},   {"complete", head.complete},
               {"summaries", Json::array()}};
  for (const Summary& s : summaries) {
    data["summaries"].push_back({{"task", s.task},
                                 {"arm", s.arm},
                                 {"budget", s.budget},
                                 {"retrieval", s.retrieval},
                                 {"lost", ToJson(s.lost)},
                                 {"agreement", ToJson(s.agreement)},
                                 {"divergence", ToJson(s.divergence)},
                                 {"found", ToJson(s.found)},
                                 {"kept", s.kept}});
  }
  std::string page = kReportPage;
  constexpr std::string_view kPlace = "/*DATA*/null";
  std::string text = data.dump();
  // So that no text of a user's ends the script.
  for (size_t at = 0; (at = text.find("</", at)) != std::string::npos;) text.replace(at, 2, "<\\/");
  page.replace(page.find(kPlace), kPlace.size(), text);
  return page;
}

std::string CsvReport(const std::vector<Summary>& summaries) {
  std::string csv =
      "task,arm,budget,cases,nats_lost,nats_lost_95,agreement,divergence,found,found_cases,"
      "found_95,retained_mass\n";
  for (const Summary& s : summaries) {
    csv += fmt::format("{},\"{}\",{},{},{:.5f},{:.5f},{:.5f},{:.5f},{:.5f},{},{:.5f},{:.5f}\n",
                       s.task, s.arm, s.budget, s.lost.count, s.lost.mean, s.lost.half_width,
                       s.agreement.mean, s.divergence.mean, s.found.mean, s.found.count,
                       s.found.half_width, s.retained_mass.mean);
  }
  return csv;
}

std::string TextReport(const std::vector<Summary>& summaries) {
  std::string text;
  for (const std::string& task : Distinct(summaries, [](const Summary& s) { return s.task; })) {
    std::vector<Summary> of_task;
    std::set<double> budgets;
    for (const Summary& s : summaries) {
      if (s.task != task) continue;
      of_task.push_back(s);
      budgets.insert(s.budget);
    }
    text += fmt::format("\n{}: {}\n\n| policy |", task,
                        of_task[0].retrieval ? "found, of what the full cache finds"
                                             : "nats a token lost over the full cache");
    for (const double budget : budgets) text += fmt::format(" {:g} % |", 100 * budget);
    text += "\n|---|";
    for (size_t i = 0; i < budgets.size(); ++i) text += "---|";
    for (const std::string& arm : Distinct(of_task, [](const Summary& s) { return s.arm; })) {
      text += fmt::format("\n| {} |", arm);
      for (const double budget : budgets) {
        const auto cell = std::find_if(of_task.begin(), of_task.end(), [&](const Summary& s) {
          return s.arm == arm && s.budget == budget;
        });
        text += cell == of_task.end() ? " - |" : fmt::format(" {} |", Cell(*cell));
      }
    }
    text += "\n";
  }
  return text;
}

}  // namespace hydrant
