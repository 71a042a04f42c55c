// Shares one step's prefill budget among the open prompts. Pure functions.
//
// The unit of cost is one token through one layer, plus its attention cost: 1 + position /
// attention scale. The oldest prompt may take half the budget; the rest goes to the shortest
// remaining prompt first, and what remains then to the oldest. So a short prompt behind a long one
// is prefilled in a step or two, and the long one still gets half the speed.
#ifndef HYDRANT_SCHEDULER_PREFILL_PLANNER_H_
#define HYDRANT_SCHEDULER_PREFILL_PLANNER_H_

#include <cmath>
#include <span>
#include <vector>

#include "engine/run/step/batch.h"

namespace hydrant {

// Cost of tokens through one layer.
struct PrefillCosts {
  // Context length at which attention costs as much as the rest of the layer.
  double attention_scale = 4096.0;

  double Of(int token_begin, int token_end) const { return UpTo(token_end) - UpTo(token_begin); }
  // Cost of the tokens before `token`, and its inverse.
  double UpTo(double token) const { return token + token * token / (2 * attention_scale); }
  double TokenAt(double cost) const {
    return attention_scale * (std::sqrt(1.0 + 2.0 * cost / attention_scale) - 1.0);
  }
};

// Prefill progress: all layers below `layer` are done, and in `layer` the tokens before `token`.
struct PrefillCursor {
  int layer = 0;
  int token = 0;
};

struct OpenPrompt {
  int num_tokens = 0;
  PrefillCursor cursor;
  int first_token = 0;  // earlier tokens are cached
};

// The next part of a prompt: several whole layers, or some tokens of one layer.
struct PromptPart {
  int prompt = 0;  // index into the open prompts
  RunPart part;
};

// `prompts`: oldest first, none finished. At most one part each; the oldest always gets one. Parts
// are cut near their share, at tile borders: the step's cost stays below 1.5 * budget, except for
// one tile of the oldest.
std::vector<PromptPart> PlanPrefill(std::span<const OpenPrompt> prompts, int num_layers,
                                    double budget, const PrefillCosts& costs = {});

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_PREFILL_PLANNER_H_
