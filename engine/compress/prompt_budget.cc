#include "engine/compress/prompt_budget.h"

namespace hydrant {
namespace {

// As many in every head of a layer.
class Alike final : public PromptBudget {
 public:
  void OfLayer(const PromptLayer& layer, const float*, const KvState&) const override {
    layer.KeepAlike(layer.plan->KeptOfPrompt(layer.layer));
  }
};

// The heads of a layer share its budget by where the best of its scores are, and are assigned its
// pages.
class SharedInLayer final : public PromptBudget {
 public:
  void OfLayer(const PromptLayer& layer, const float* scores, const KvState& kv) const override {
    const CachePlan& plan = *layer.plan;
    const int heads = layer.num_kv_heads;
    const int32_t budget = plan.LayerBudget(layer.layer), guarded = plan.Protected();
    layer.backend->Select({.scores = scores,
                           .score_stride = layer.stride,
                           .num_kv_heads = heads,
                           .n = layer.n,
                           .sinks = plan.rule.sinks,
                           .recent = plan.rule.recent,
                           .kept = layer.kept,
                           .kept_stride = layer.stride,
                           .counts = layer.keep,
                           .total = heads * budget});
    layer.backend->ShareBudget({.best = layer.keep,
                                .counted = guarded,
                                .heads = heads,
                                .base = budget - guarded,
                                .floor_ppm = plan.floor_ppm,
                                .guarded = guarded,
                                .keep = layer.keep});
    layer.backend->AssignPages({.keep = layer.keep,
                                .block_size = kv.pages().layout.block_size,
                                .slot = layer.slot,
                                .layer = layer.layer,
                                .tables = kv.tables(),
                                .blocks = kv.blocks()});
  }
};

// Every head keeps candidates, from which it is chosen when those of all layers are in their pages.
class FromCandidates final : public PromptBudget {
 public:
  void OfLayer(const PromptLayer& layer, const float*, const KvState&) const override {
    layer.KeepAlike(layer.plan->Candidates());
  }
  void OfPrompt(const CachePlan& plan, const KvState& kv, int slot,
                PageBudget* pages) const override {
    const SlotPages cache = {.slot = slot,
                             .tokens = static_cast<int32_t>(plan.prompt.tokens),
                             .max_length = plan.Candidates(),
                             .pages = kv.pages(),
                             .tables = kv.tables()};
    pages->Share(plan, cache);
    pages->RaiseForMass(plan, cache);
    pages->Compact(plan, cache, plan.Growth());
  }
};

constexpr Alike kAlike;
constexpr SharedInLayer kSharedInLayer;
constexpr FromCandidates kFromCandidates;

}  // namespace

const PromptBudget& BudgetOf(const CachePlan& plan) {
  if (!plan.IsRagged()) return kAlike;
  if (plan.IsDeferred()) return kFromCandidates;
  return kSharedInLayer;
}

}  // namespace hydrant
