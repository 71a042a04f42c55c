// The Budget step of a prompt: how many entries each head keeps. There are a few ways, and a plan's
// scope and min_retained_mass say which is its own. What admission must know beforehand, a bound,
// is the plan's to say (CachePlan::WidestKeep).
#ifndef HYDRANT_ENGINE_COMPRESS_PROMPT_BUDGET_H_
#define HYDRANT_ENGINE_COMPRESS_PROMPT_BUDGET_H_

#include "engine/cache/prompt_scorer.h"
#include "engine/compress/page_budget.h"
#include "engine/pool/kv_state.h"

namespace hydrant {

// Without state, as scorers are.
class PromptBudget {
 public:
  // layer.keep, when the layer has been read and scored.
  virtual void OfLayer(const PromptLayer& layer, const float* scores, const KvState& kv) const = 0;
  // When all layers have been written.
  virtual void OfPrompt(const CachePlan& /*plan*/, const KvState& /*kv*/, int /*slot*/,
                        PageBudget* /*pages*/) const {}

 protected:
  ~PromptBudget() = default;
};

const PromptBudget& BudgetOf(const CachePlan& plan);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_COMPRESS_PROMPT_BUDGET_H_
