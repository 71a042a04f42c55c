// What has been measured, kept in a file of JSON lines that begins with the settings it was made
// with: a run that is stopped goes on where it was. Who else is asked the same cases
// (CasesAsJson) appends lines of the same form, under names of arms of their own.
#ifndef HYDRANT_TOOLS_EVAL_RESULTS_H_
#define HYDRANT_TOOLS_EVAL_RESULTS_H_

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/eval/laboratory.h"
#include "tools/eval/tasks.h"

namespace hydrant::eval {

struct CaseResult {
  std::string task;
  int number = 0;
  std::string arm;
  double budget = 1.0;  // share of the context that a KV head keeps, on average
  double nll = 0;
  double agreement = 0;
  double divergence = 0;
  double found = 0;  // share of the answers
  std::string text;
  int64_t entries = 0;
  double retained_mass = 1;
  std::vector<int32_t> kept;
};

// A mean with the half-width of its 95 % interval; of one value that is unknown, and 0.
struct Estimate {
  int count = 0;
  double mean = 0;
  double half_width = 0;
};
Estimate EstimateOf(const std::vector<double>& values);

// Of an arm at a budget, over the cases of a task: paired with the full cache of the same case.
struct Summary {
  std::string task, arm;
  double budget = 1.0;
  bool retrieval = false;  // found is what counts; else lost
  bool best = false;       // no other arm of its task and budget is better; never the oracle
  Estimate lost = {};      // nats a token over the full cache
  Estimate agreement = {};
  Estimate divergence = {};
  Estimate found = {};  // of what the full cache finds
  Estimate retained_mass = {};
  std::vector<double> kept = {};  // [layers * KV heads] entries, mean over the cases

  // The mean of `found`, or of `lost` negated: higher is better.
  double Score() const { return retrieval ? found.mean : -lost.mean; }
  double KeptMean() const;  // entries that a KV head keeps, averaged over layers and heads
};

// What an arm has over another, `against`, at the same budget of the same cases of a task: nats a
// token more, or, of a retrieval, the share found more of what the full cache finds.
struct Difference {
  std::string task, arm, against;
  double budget = 1.0;
  bool retrieval = false;
  Estimate more = {};

  // Beyond the interval, of as many cases as make it worth its name.
  bool IsClear() const { return more.count >= 5 && std::abs(more.mean) > more.half_width; }
  bool IsBetter() const { return IsClear() && (more.mean > 0) == retrieval; }
  bool IsWorse() const { return IsClear() && !IsBetter(); }
};

class Results {
 public:
  // Reads what is there. FailedPrecondition where it was made with other settings, InvalidArgument
  // where a line is not an outcome. What a run that was killed left of its last line is cut off.
  static absl::StatusOr<Results> Open(const std::string& path, const nlohmann::json& settings);

  bool Has(const std::string& task, int number, const std::string& arm, double budget) const;
  // Appends it to the file.
  absl::Status Add(const CaseResult& measured);
  // Tasks, arms and budgets in the order in which they were first measured. full: the arm that
  // others are compared with.
  std::vector<Summary> Summarize() const;
  // Every other arm against each of these, paired case by case, in the order of Summarize().
  std::vector<Difference> Compare(const std::vector<std::string>& against) const;

 private:
  using Key = std::tuple<std::string, int, std::string, double>;
  bool Insert(const CaseResult& measured);
  const CaseResult* Find(const Key& key) const;

  std::string path_;
  std::vector<CaseResult> measured_;
  std::map<Key, size_t> index_;
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_RESULTS_H_
