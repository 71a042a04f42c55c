// The analyses of the four papers for one text and one model: computed from a plain forward pass
// (tools/eval/anatomy.h) and, where a policy's kept entries matter, from the engine's caches. The
// result is JSON, drawn by the report page (tools/eval/report_anatomy.js).
#ifndef HYDRANT_TOOLS_EVAL_PICTURES_H_
#define HYDRANT_TOOLS_EVAL_PICTURES_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/eval/anatomy.h"
#include "tools/eval/laboratory.h"

namespace hydrant::eval {

struct AnatomyOptions {
  std::vector<Arm> arms;        // policies to compare, without budgets
  std::vector<double> budgets;  // shares of the context
  int length = 400;             // tokens of the context
  int given = 100;              // tokens after it
  std::function<void(const std::string& step)> progress = [](const std::string&) {};
};

// Analyses the text's middle. InvalidArgument if it is too short.
absl::StatusOr<nlohmann::json> DrawAnatomy(const std::string& name, const std::string& text,
                                           const AnatomyOptions& options, Laboratory* laboratory,
                                           PlainForward* forward);

// Ada-KV, figure 1: the number of largest weights that hold this share of their sum.
int EntriesHolding(std::vector<double> weights, double share);
// H2O, figure 2a: the share of a query's weights below a hundredth of their largest.
double SparsityOf(std::span<const double> weights);

// Spearman's rank correlation, ties share their rank; 0 if all values are equal.
double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_PICTURES_H_
