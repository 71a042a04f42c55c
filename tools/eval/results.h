// Measured results in a file of JSON lines with the settings in the first line: an interrupted run
// resumes. Other programs that evaluate the same cases (CasesAsJson) append lines of the same form,
// under their own arm names.
#ifndef HYDRANT_TOOLS_EVAL_RESULTS_H_
#define HYDRANT_TOOLS_EVAL_RESULTS_H_

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant::eval {

struct CaseResult {
  std::string task;
  int number = 0;    // of the case
  int question = 0;  // its place in the case
  std::string arm;
  double budget = 1.0;  // share of the context kept per KV head, on average
  double nll = 0;
  double agreement = 0;
  double divergence = 0;
  bool retrieval = false;  // scored by `found`; else by `nll`
  double found = 0;        // share of the answers, or whether the choice is right
  double depth = -1;       // of the fact in the context, 0 to 1; -1: none
  std::string text;
  int64_t entries = 0;
  double retained_mass = 1;
  std::vector<int32_t> kept;
};

// A mean with the half-width of its 95 % interval; 0 for a single value.
struct Estimate {
  int count = 0;
  double mean = 0;
  double half_width = 0;
};
Estimate EstimateOf(const std::vector<double>& values);

// Summary of an arm at a budget over the cases of a task, paired with the full cache. A case with
// several questions counts as their mean.
struct Summary {
  std::string task, arm;
  double budget = 1.0;
  bool retrieval = false;  // scored by `found`; else by `lost`
  bool best = false;       // best arm of its task and budget; never the oracle
  Estimate lost = {};      // nats per token over the full cache
  Estimate agreement = {};
  Estimate divergence = {};
  Estimate found = {};  // of the questions that the full cache answers, relative to it
  int questions = 0;    // that the full cache answers
  Estimate retained_mass = {};
  std::vector<double> kept = {};  // [layers * KV heads] entries, mean over the cases
  int rows = 0;                   // questions

  // The mean of `found`, or of `lost` negated: higher is better.
  double Score() const { return retrieval ? found.mean : -lost.mean; }
  double KeptMean() const;  // entries per KV head, averaged over layers and heads
};

// Difference of an arm to `against`, at the same budget and on the same cases of a task: nats per
// token, or, for a retrieval task, share of the full cache's answers.
struct Difference {
  std::string task, arm, against;
  double budget = 1.0;
  bool retrieval = false;
  Estimate more = {};

  // Beyond the interval, with enough cases for it to be meaningful.
  bool IsClear() const { return more.count >= 5 && std::abs(more.mean) > more.half_width; }
  bool IsBetter() const { return IsClear() && (more.mean > 0) == retrieval; }
  bool IsWorse() const { return IsClear() && !IsBetter(); }
};

class Results {
 public:
  // Reads an existing file. FailedPrecondition if it was written with other settings,
  // InvalidArgument if a line is not an outcome. An incomplete last line of a killed run is
  // removed.
  static absl::StatusOr<Results> Open(const std::string& path, const nlohmann::json& settings);

  bool Has(const std::string& task, int number, int question, const std::string& arm,
           double budget) const;
  // Appends to the file.
  absl::Status Add(const CaseResult& measured);
  // Tasks, arms and budgets in order of first measurement. full: the baseline arm.
  std::vector<Summary> Summarize() const;
  // The same over the questions of all tasks by the place of their facts in the context. The task
  // of a summary is the place: "first third", "middle third", "last third".
  std::vector<Summary> SummarizeByPlace() const;
  // Every other arm against each arm of `against`, paired case by case, in the order of
  // Summarize().
  std::vector<Difference> Compare(const std::vector<std::string>& against) const;

 private:
  using NameOf = std::function<std::string(const CaseResult&)>;
  using Key = std::tuple<std::string, int, int, std::string, double>;
  static Key KeyOf(const CaseResult& measured);
  bool Insert(const CaseResult& measured);
  // Summaries of the results that have the same name; those without one are left out.
  std::vector<Summary> SummarizeBy(const NameOf& name_of) const;
  const CaseResult* FullOf(const CaseResult& measured) const;
  const CaseResult* Find(const Key& key) const;

  std::string path_;
  std::vector<CaseResult> measured_;
  std::map<Key, size_t> index_;
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_RESULTS_H_
