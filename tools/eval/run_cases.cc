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

CaseResult CaseResultOf(const Case& asked, int question, const std::string& arm, double budget,
                        const Outcome& outcome) {
  const Question& judged = asked.questions[question];
  const Answer& answer = outcome.answers[judged.dialogue][judged.exchange];
  return {.task = judged.task,
          .number = asked.number,
          .question = question,
          .arm = arm,
          .budget = budget,
          .nll = answer.nll,
          .agreement = answer.agreement,
          .divergence = answer.divergence,
          .retrieval = judged.judge != Judge::kForeseen,
          .found = Score(judged, outcome),
          .depth = judged.depth,
          .text = answer.text,
          .entries = outcome.entries,
          .retained_mass = outcome.retained_mass,
          .kept = outcome.kept};
}

bool HasAll(const Results& results, const Case& asked, const std::string& arm, double budget) {
  for (size_t i = 0; i < asked.questions.size(); ++i) {
    const int question = static_cast<int>(i);
    if (!results.Has(asked.questions[i].task, asked.number, question, arm, budget)) return false;
  }
  return true;
}

// An arm for each policy and budget without a result.
std::vector<Arm> MissingArms(const Flags& flags, const Case& asked, const Results& results) {
  std::vector<Arm> arms;
  for (const std::string& policy : flags.policies) {
    for (const double budget : flags.budgets) {
      if (HasAll(results, asked, policy, budget)) continue;
      arms.push_back(ParseArm(policy));
      arms.back().cache.cache_ratio = budget;
    }
  }
  return arms;
}

// Measures all missing results of the case. Outcomes of `arms`: the full cache's, then theirs.
std::vector<Outcome> RunCase(const Case& asked, const std::vector<Arm>& arms, TrialRunner* runner,
                             Results* results) {
  std::vector<Outcome> outcomes = runner->Run(asked.trial, arms);
  if (!outcomes[0].refused.ok()) Fail(std::string(outcomes[0].refused.message()));
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].refused.ok()) continue;
    for (size_t question = 0; question < asked.questions.size(); ++question) {
      const absl::Status status = results->Add(
          CaseResultOf(asked, static_cast<int>(question), i == 0 ? "full" : arms[i - 1].name,
                       i == 0 ? 1.0 : *arms[i - 1].cache.cache_ratio, outcomes[i]));
      if (!status.ok()) Fail(std::string(status.message()));
    }
  }
  return outcomes;
}

void SaveKept(const Case& asked, const std::vector<Arm>& arms, const std::vector<Outcome>& outcomes,
              const Tokenizer& tokenizer, KeptText* kept_text) {
  if (outcomes[0].kept_entries.num_tokens() == 0) return;  // not known
  for (size_t i = 0; i < arms.size(); ++i) {
    if (outcomes[i + 1].kept_entries.num_tokens() > 0)
      kept_text->Add(arms[i].name, *arms[i].cache.cache_ratio, outcomes[i + 1].kept_entries);
  }
  const absl::Status saved = kept_text->Save(asked.trial.context, tokenizer);
  if (!saved.ok()) Fail(std::string(saved.message()));
}

}  // namespace

std::vector<Case> MakeAllCases(const Flags& flags, const std::vector<std::string>& texts,
                               const PromptForm& form, const Tokenizer& tokenizer) {
  std::vector<Case> cases;
  for (const std::string& task : TasksOf(flags)) {
    auto made = MakeCases(task, flags.task, texts, form, tokenizer);
    if (!made.ok()) Fail(std::string(made.status().message()), kExitUsage);
    std::move(made->begin(), made->end(), std::back_inserter(cases));
  }
  std::stable_sort(cases.begin(), cases.end(),
                   [](const Case& a, const Case& b) { return a.number < b.number; });
  return cases;
}

bool RunCases(const Flags& flags, const std::vector<Case>& cases, const Tokenizer& tokenizer,
              TrialRunner* runner, Results* results, KeptText* kept_text) {
  PrintErr("{}\n", runner->Description());
  CatchInterrupts();
  ProgressBar progress(cases.size());
  size_t done = 0;
  for (const Case& asked : cases) {
    if (Interrupted()) break;
    const std::vector<Arm> arms = MissingArms(flags, asked, *results);
    if (!arms.empty()) {
      const std::vector<Outcome> outcomes = RunCase(asked, arms, runner, results);
      if (done == 0) SaveKept(asked, arms, outcomes, tokenizer, kept_text);
    }
    progress.Show(++done);
  }
  PrintErr("\n");
  return done == cases.size();
}

}  // namespace hydrant::eval
