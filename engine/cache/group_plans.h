// The cache groups of an engine with their plans, derived from a request's plan.
#ifndef HYDRANT_ENGINE_CACHE_GROUP_PLANS_H_
#define HYDRANT_ENGINE_CACHE_GROUP_PLANS_H_

#include "engine/cache/cache_group.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/engine_limits.h"

namespace hydrant {

// Calls visit(group, plan of its heads, index of its first head), in the order of heads.
template <typename Visit>
void ForEachGroup(const EngineLimits& limits, const CachePlan& plan, const Visit& visit) {
  int first_head = 0;
  for (const CacheGroup& group : limits.Groups()) {
    if (group.kind == GroupKind::kBudget) {
      visit(group, plan, first_head);
    } else {
      visit(group, group.PlanOf(plan), first_head);
    }
    first_head += group.NumHeads();
  }
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_GROUP_PLANS_H_
