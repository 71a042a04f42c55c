// A cache is a list of groups: layers of the model with heads that follow one plan, in block tables
// of their own. The budget group follows the plan of the request's policy; "all layers" in a policy
// means its layers. The plans of other groups follow from the model and the prompt's length alone.
// Plain data.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_GROUP_H_
#define HYDRANT_ENGINE_CACHE_CACHE_GROUP_H_

#include <algorithm>
#include <cstdint>

namespace hydrant {

struct CachePlan;

enum class GroupKind : uint8_t {
  kBudget,  // the plan of the request
  kWindow,  // a head holds the newest `window` tokens of its sequence
  kCount,   // the number of kinds
};
inline constexpr int kNumGroupKinds = static_cast<int>(GroupKind::kCount);

struct CacheGroup {
  GroupKind kind = GroupKind::kBudget;
  int num_layers = 0;
  int num_kv_heads = 0;  // of a layer
  int window = 0;        // of kWindow

  int NumHeads() const { return num_layers * num_kv_heads; }
  // Entries of a head after `tokens` tokens, if heads of the budget group hold `kept`.
  int64_t EntriesOf(int64_t tokens, int64_t kept) const {
    return kind == GroupKind::kBudget ? kept : std::min<int64_t>(tokens, window);
  }
  // The plan of the group's heads in a sequence of a request with `plan`.
  CachePlan PlanOf(const CachePlan& plan) const;

  bool operator==(const CacheGroup&) const = default;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_GROUP_H_
