#include "tools/eval/winners.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "fmt/format.h"

namespace hydrant::eval {
namespace {

// The means over all tasks of the arms that have every task, best first.
std::vector<std::pair<std::string, double>> Ranking(const std::vector<Summary>& summaries,
                                                    double budget, bool retrieval) {
  std::set<std::string> tasks;
  std::map<std::string, std::vector<double>> scores;
  for (const Summary& summary : summaries) {
    if (summary.budget != budget || summary.retrieval != retrieval) continue;
    if (retrieval && summary.found.count == 0) continue;  // the full cache finds nothing
    tasks.insert(summary.task);
    if (!summary.arm.starts_with("oracle")) scores[summary.arm].push_back(summary.Score());
  }
  std::vector<std::pair<std::string, double>> ranking;
  for (const auto& [arm, of_tasks] : scores) {
    if (of_tasks.size() == tasks.size()) ranking.emplace_back(arm, EstimateOf(of_tasks).mean);
  }
  std::ranges::stable_sort(ranking, std::greater(), &std::pair<std::string, double>::second);
  return ranking;
}

// The paired lead of the winner, over the tasks.
void SetLead(const Results& results, Winner* winner) {
  int tasks = 0;
  double squares = 0;
  for (const Difference& difference : results.Compare({winner->next})) {
    if (difference.arm != winner->arm || difference.budget != winner->budget ||
        difference.retrieval != winner->retrieval)
      continue;
    ++tasks;
    winner->lead += winner->retrieval ? difference.more.mean : -difference.more.mean;
    squares += std::pow(difference.more.half_width, 2);
  }
  if (tasks == 0) return;
  winner->lead /= tasks;
  winner->half_width = std::sqrt(squares) / tasks;
}

}  // namespace

std::vector<Winner> WinnersOf(const Results& results) {
  const std::vector<Summary> summaries = results.Summarize();
  std::set<double> budgets;
  for (const Summary& summary : summaries) budgets.insert(summary.budget);
  std::vector<Winner> winners;
  for (const bool retrieval : {true, false}) {
    for (const double budget : budgets) {
      const auto ranking = Ranking(summaries, budget, retrieval);
      if (ranking.size() < 2) continue;
      Winner winner = {.budget = budget,
                       .retrieval = retrieval,
                       .arm = ranking[0].first,
                       .next = ranking[1].first,
                       .score = retrieval ? ranking[0].second : -ranking[0].second};
      SetLead(results, &winner);
      winners.push_back(std::move(winner));
    }
  }
  return winners;
}

std::string Sentence(const Winner& winner) {
  const std::string where = fmt::format("At {:g} % of the cache ", 100 * winner.budget);
  const char* const clear = winner.IsClear() ? "" : "; these cases do not tell the two apart";
  if (winner.retrieval) {
    return fmt::format(
        "{}{} finds {:.0f} % of what the full cache finds, {:.0f} ±{:.0f} points more than {}, the "
        "next{}.",
        where, winner.arm, 100 * winner.score, 100 * winner.lead, 100 * winner.half_width,
        winner.next, clear);
  }
  return fmt::format(
      "{}{} loses least, {:.3f} nats a token, {:.3f} ±{:.3f} less than {}, the next{}.", where,
      winner.arm, winner.score, winner.lead, winner.half_width, winner.next, clear);
}

}  // namespace hydrant::eval
