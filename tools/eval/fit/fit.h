// Fits the score predictors of a model (engine/run/forward/score_predictor.h) to the attention that
// entries receive when the model reads pages of text again: KVzap (arXiv 2601.07891) with the
// targets of `reconstruct:echo=true`.
#ifndef HYDRANT_TOOLS_EVAL_FIT_FIT_H_
#define HYDRANT_TOOLS_EVAL_FIT_FIT_H_

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/run/engine.h"
#include "engine/run/forward/score_predictor.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::eval {

struct FitOptions {
  int pages = 48;
  int page_tokens = 1000;
  float max_weight = 10.0f;                // of the largest attention in a target, beside the total
  std::function<void(int done)> progress;  // after each page
  std::function<bool()> interrupted;
};

// How many of the entries that the target ranks highest a predictor and `echo` rank so, over all
// heads, on pages that were not fitted. [shares]
struct FitCheck {
  std::vector<double> shares = {0.05, 0.1, 0.2, 0.4};
  std::vector<double> learned;
  std::vector<double> echo;

  // Whether the predictor is ahead at all shares together.
  bool LearnedIsAhead() const;
};

struct Fit {
  ScorePredictor predictor;
  FitCheck check;
  double penalty = 0;  // Ridge::Solve(), chosen on the pages of the check
};

// Pages of `page_tokens` tokens, evenly spaced in each text, of which there is at least one; the
// texts take turns. InvalidArgument: the texts are too short for distinct pages.
absl::StatusOr<std::vector<std::vector<TokenId>>> CutPages(const std::vector<std::string>& texts,
                                                           const FitOptions& options,
                                                           const Tokenizer& tokenizer);

// One of each kPagesACheck pages is for the check. Cancelled: options.interrupted said so.
// REQUIRES: as ReadPage() for each page; at least kPagesACheck pages
inline constexpr int kPagesACheck = 8;
absl::StatusOr<Fit> FitPredictor(const std::vector<std::vector<TokenId>>& pages,
                                 std::span<const TokenId> instruction, const FitOptions& options,
                                 Engine* engine);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_FIT_FIT_H_
