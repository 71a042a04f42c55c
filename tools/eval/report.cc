#include "tools/eval/report.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "fmt/format.h"
#include "tools/eval/report_page.h"

namespace hydrant::eval {
namespace {

using Json = nlohmann::json;

Json ToJson(const Estimate& estimate) {
  return {{"count", estimate.count}, {"mean", estimate.mean}, {"half_width", estimate.half_width}};
}

// In order of first appearance.
template <typename Row, typename Get>
std::vector<std::string> Distinct(const std::vector<Row>& rows, const Get& get) {
  std::vector<std::string> names;
  for (const Row& row : rows) {
    if (std::find(names.begin(), names.end(), get(row)) == names.end()) names.push_back(get(row));
  }
  return names;
}

std::string Figure(const Summary& summary) {
  if (summary.retrieval)
    return fmt::format("{:.0f} % of {}", 100 * summary.found.mean, summary.found.count);
  return fmt::format("{:.3f} ±{:.3f}", summary.lost.mean, summary.lost.half_width);
}

std::string Cell(const Summary& summary) {
  const char* mark = summary.best ? "**" : "";
  return mark + Figure(summary) + mark;
}

double ScoreOf(const Summary& summary) { return summary.Score(); }
double ScoreOf(const Difference& d) { return d.retrieval ? d.more.mean : -d.more.mean; }

// By their mean over the budgets, the best first.
template <typename Row>
std::vector<std::string> ArmsInOrder(const std::vector<Row>& rows) {
  std::vector<std::string> arms = Distinct(rows, [](const Row& row) { return row.arm; });
  const auto mean = [&](const std::string& arm) {
    std::vector<double> scores;
    for (const Row& row : rows) {
      if (row.arm == arm) scores.push_back(ScoreOf(row));
    }
    return EstimateOf(scores).mean;
  };
  std::ranges::stable_sort(arms, std::greater(), mean);
  return arms;
}

std::string Figure(const Difference& d) {
  if (d.retrieval)
    return fmt::format("{:+.0f} ±{:.0f} %", 100 * d.more.mean, 100 * d.more.half_width);
  return fmt::format("{:+.3f} ±{:.3f}", d.more.mean, d.more.half_width);
}

const char* Verdict(const Difference& d) {
  return d.IsBetter() ? "better" : d.IsWorse() ? "worse" : "";
}

std::string Cell(const Difference& d) {
  const char* mark = d.IsBetter() ? "**" : d.IsWorse() ? "*" : "";
  return mark + Figure(d) + mark;
}

// A row per arm, the best first, a column per budget.
template <typename Row>
std::string Table(const std::vector<Row>& rows) {
  std::set<double> budgets;
  for (const Row& row : rows) budgets.insert(row.budget);
  std::string text = "| policy |";
  for (const double budget : budgets) text += fmt::format(" {:g} % |", 100 * budget);
  text += "\n|---|";
  for (size_t i = 0; i < budgets.size(); ++i) text += "---|";
  for (const std::string& arm : ArmsInOrder(rows)) {
    text += fmt::format("\n| {} |", arm);
    for (const double budget : budgets) {
      const auto cell = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
        return row.arm == arm && row.budget == budget;
      });
      text += cell == rows.end() ? " - |" : fmt::format(" {} |", Cell(*cell));
    }
  }
  return text + "\n";
}

template <typename Row, typename Belongs>
std::vector<Row> Those(const std::vector<Row>& rows, const Belongs& belongs) {
  std::vector<Row> those;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(those), belongs);
  return those;
}

}  // namespace

std::string HtmlReport(const ReportHead& head, const std::vector<Summary>& summaries,
                       const std::vector<Difference>& differences, const Json& anatomy,
                       const Json& kept_text) {
  Json data = {
      {"title", head.title},        {"settings", head.settings},    {"layers", head.num_layers},
      {"heads", head.num_kv_heads}, {"context", head.context},      {"complete", head.complete},
      {"summaries", Json::array()}, {"differences", Json::array()}, {"anatomy", anatomy},
      {"winners", head.winners},    {"kept_text", kept_text}};
  for (const Summary& s : summaries) {
    data["summaries"].push_back({{"task", s.task},
                                 {"arm", s.arm},
                                 {"budget", s.budget},
                                 {"retrieval", s.retrieval},
                                 {"best", s.best},
                                 {"cell", Figure(s)},
                                 {"score", s.Score()},
                                 {"lost", ToJson(s.lost)},
                                 {"agreement", ToJson(s.agreement)},
                                 {"divergence", ToJson(s.divergence)},
                                 {"found", ToJson(s.found)},
                                 {"kept", s.kept}});
  }
  for (const Difference& d : differences) {
    data["differences"].push_back({{"task", d.task},
                                   {"arm", d.arm},
                                   {"against", d.against},
                                   {"budget", d.budget},
                                   {"retrieval", d.retrieval},
                                   {"cell", Figure(d)},
                                   {"score", ScoreOf(d)},
                                   {"verdict", Verdict(d)},
                                   {"count", d.more.count}});
  }
  std::string page = kReportPage;
  constexpr std::string_view kPlace = "/*DATA*/null";
  std::string text = data.dump();
  // Prevents user text from ending the script element.
  for (size_t at = 0; (at = text.find("</", at)) != std::string::npos;) text.replace(at, 2, "<\\/");
  page.replace(page.find(kPlace), kPlace.size(), text);
  return page;
}

std::string CsvReport(const std::vector<Summary>& summaries) {
  std::string csv =
      "task,arm,budget,cases,nats_lost,nats_lost_95,agreement,divergence,found,found_cases,"
      "found_95,retained_mass,kept_mean,best\n";
  for (const Summary& s : summaries) {
    csv += fmt::format(
        "{},\"{}\",{},{},{:.5f},{:.5f},{:.5f},{:.5f},{:.5f},{},{:.5f},{:.5f},{:.1f},{}\n", s.task,
        s.arm, s.budget, s.lost.count, s.lost.mean, s.lost.half_width, s.agreement.mean,
        s.divergence.mean, s.found.mean, s.found.count, s.found.half_width, s.retained_mass.mean,
        s.KeptMean(), s.best ? 1 : 0);
  }
  return csv;
}

std::string TextReport(const std::vector<Summary>& summaries) {
  std::string text;
  for (const std::string& task : Distinct(summaries, [](const Summary& s) { return s.task; })) {
    const auto of_task = Those(summaries, [&](const Summary& s) { return s.task == task; });
    text += fmt::format("\n{}: {}\n\n{}", task,
                        of_task[0].retrieval ? "found, of what the full cache finds (**most**)"
                                             : "nats a token lost over the full cache (**least**)",
                        Table(of_task));
  }
  return text;
}

std::string CsvReport(const std::vector<Difference>& differences) {
  std::string csv = "task,arm,against,budget,cases,more,more_95,verdict\n";
  for (const Difference& d : differences) {
    csv += fmt::format("{},\"{}\",\"{}\",{},{},{:.5f},{:.5f},{}\n", d.task, d.arm, d.against,
                       d.budget, d.more.count, d.more.mean, d.more.half_width, Verdict(d));
  }
  return csv;
}

std::string TextReport(const std::vector<Difference>& differences) {
  std::string text;
  for (const std::string& against :
       Distinct(differences, [](const auto& d) { return d.against; })) {
    for (const std::string& task : Distinct(differences, [](const auto& d) { return d.task; })) {
      const auto those = Those(
          differences, [&](const Difference& d) { return d.against == against && d.task == task; });
      if (those.empty()) continue;
      text += fmt::format("\n{}: {} than {}, over the same cases (**better**, *worse*)\n\n{}", task,
                          those[0].retrieval ? "found more" : "nats a token more", against,
                          Table(those));
    }
  }
  return text;
}

}  // namespace hydrant::eval
