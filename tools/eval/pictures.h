// The pictures and numbers by which the four papers argue, of one text and one model: computed from
// a plain forward pass (tools/eval/anatomy.h) and, where a policy's kept entries matter, from what
// the engine keeps. As JSON, which the report's page draws (tools/eval/report_anatomy.js).
#ifndef HYDRANT_TOOLS_EVAL_PICTURES_H_
#define HYDRANT_TOOLS_EVAL_PICTURES_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/eval/anatomy.h"
#include "tools/eval/laboratory.h"

namespace hydrant::eval {

struct AnatomyOptions {
  std::vector<Arm> arms;        // policies whose losses are compared, without budgets
  std::vector<double> budgets;  // shares of the context
  int length = 400;             // tokens of the context
  int given = 100;              // tokens after it
  std::function<void(const std::string& step)> progress = [](const std::string&) {};
};

// Of the text's middle. InvalidArgument where it is too short.
absl::StatusOr<nlohmann::json> DrawAnatomy(const std::string& name, const std::string& text,
                                           const AnatomyOptions& options, Laboratory* laboratory,
                                           PlainForward* forward);

// Ada-KV, figure 1: how many of the largest weights hold that share of their sum.
int EntriesHolding(std::vector<double> weights, double share);

// Spearman's: the correlation of the ranks, equal values sharing theirs; 0 where all are equal.
double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_PICTURES_H_
