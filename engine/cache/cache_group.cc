#include "engine/cache/cache_group.h"

#include "engine/cache/cache_plan.h"

namespace hydrant {

// A window is a budget and a cap of the newest entries in every head. Rolling sequences store keys
// before RoPE in all layers.
CachePlan CacheGroup::PlanOf(const CachePlan& plan) const {
  if (kind == GroupKind::kBudget) return plan;
  CachePlan of_window;
  of_window.prompt = plan.prompt;
  of_window.prompt.num_layers = num_layers;
  of_window.budget = of_window.cap = window;
  of_window.measures_mass = false;
  of_window.rule = {
      .by_position = true, .scored = true, .recent = window, .rolling = plan.rule.rolling};
  return of_window;
}

}  // namespace hydrant
