// A cache is a list of groups: layers of the model whose heads live by one plan and lie in tables
// of their own. The budget group lives by the plan that a request's policy makes; what policies say
// of "all layers" they say of it. The plans of other groups follow from the model and the prompt's
// length, whatever the policy. Plain data.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_GROUP_H_
#define HYDRANT_ENGINE_CACHE_CACHE_GROUP_H_

#include <cstdint>

namespace hydrant {

struct CachePlan;

enum class GroupKind : uint8_t {
  kBudget,  // the plan of the request
  kWindow,  // a head holds the newest `window` tokens of its sequence
};

struct CacheGroup {
  GroupKind kind = GroupKind::kBudget;
  int num_layers = 0;
  int num_kv_heads = 0;  // of a layer
  int window = 0;        // of kWindow

  int NumHeads() const { return num_layers * num_kv_heads; }
  // By which the heads of a sequence live whose request has `plan`.
  CachePlan PlanOf(const CachePlan& plan) const;

  bool operator==(const CacheGroup&) const = default;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_GROUP_H_
