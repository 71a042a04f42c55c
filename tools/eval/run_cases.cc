#include "tools/eval/run_cases.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "kernels/standard_streams.h"

namespace hydrant::eval {
namespace {

using Clock = std::chrono::steady_clock;

class ProgressBar {
 public:
  explicit ProgressBar(size_t all) : all_(all) {}
  void Show(size_t done) {
    const double part = static_cast<double>(done) / static_cast<double>(std::max<size_t>(1, all_));
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double left = part > 0 ? seconds / part * (1 - part) : 0;
    if (isatty(2) == 0) {
      PrintErr("{} of {} cases, {:.0f} s left\n", done, all_, left);
    } else {
      PrintErr("\r[{:<40}] {} of {} cases, {:.0f} s left ",
               std::string(static_cast<size_t>(40 * part), '#'), done, all_, left);
    }
  }

 private:
  size_t all_;
  Clock::time_point start_ = Clock::now();
};

CaseResult CaseResultOf(const Case& asked, const std::string& arm, double budget,
                        const Outcome& outcome) {
  return {.task = asked.task,
          .number = asked.number,
          .arm = arm,
          .budget = budget,
          .nll = outcome.nll,
          .agreement = outcome.agreement,
          .divergence = outcome.divergence,
          .found = Found(asked, outcome.text),
          .text = outcome.text,
          .entries = outcome.entries,
          .retained_mass = outcome.retained_mass,
          .kept = outcome.kept};
}

// Measures all missing results of the case with one prefill.
void RunCase(const Flags& flags, const Case& asked, Laboratory* laboratory, Results* results) {
  std::vector<Arm> arms;
  std::vector<double> budgets;
  for (const std::string& policy : flags.policies) {
    for (const double budget : flags.budgets) {
      if (results->Has(asked.task, asked.number, policy, budget)) continue;
      arms.push_back(ParseArm(policy));
      arms.back().cache.cache_ratio = budget;
      budgets.push_back(budget);
    }
  }
  if (arms.empty()) return;
  const std::vector<Outcome> outcomes = laboratory->Run(asked.trial, arms);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].refused.ok()) continue;
    const absl::Status status = results->Add(CaseResultOf(
        asked, i == 0 ? "full" : arms[i - 1].name, i == 0 ? 1.0 : budgets[i - 1], outcomes[i]));
    if (!status.ok()) Fail(std::string(status.message()));
  }
}

}  // namespace

std::vector<Case> MakeAllCases(const Flags& flags, const std::vector<std::string>& texts,
                               const Laboratory& laboratory) {
  std::vector<Case> cases;
  for (const std::string& task : flags.tasks) {
    if (task == kNoTask) continue;
    auto made = MakeCases(task, flags.task, texts, laboratory);
    if (!made.ok()) Fail(std::string(made.status().message()), kExitUsage);
    std::move(made->begin(), made->end(), std::back_inserter(cases));
  }
  std::stable_sort(cases.begin(), cases.end(),
                   [](const Case& a, const Case& b) { return a.number < b.number; });
  return cases;
}

bool RunCases(const Flags& flags, const std::vector<Case>& cases, Laboratory* laboratory,
              Results* results) {
  PrintErr("{}\n", laboratory->Description());
  CatchInterrupts();
  ProgressBar progress(cases.size());
  size_t done = 0;
  for (const Case& asked : cases) {
    if (Interrupted()) break;
    RunCase(flags, asked, laboratory, results);
    progress.Show(++done);
  }
  PrintErr("\n");
  return done == cases.size();
}

}  // namespace hydrant::eval
