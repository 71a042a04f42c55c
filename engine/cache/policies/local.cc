#include "engine/cache/policy_registry.h"

namespace hydrant {
namespace {

// A sliding window: the last C entries. The baseline that H2O (arXiv 2306.14048) calls "Local".
class LocalPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"local",
            "keeps the last entries only (a sliding window)",
            {MaxCacheTokensParameter(), CacheRatioParameter(), MinCacheTokensParameter()}};
  }
  absl::Status Fill(const CacheSpec&, CachePlan* plan) const override {
    plan->rule.scored = true;
    plan->rule.by_position = true;
    plan->rule.recent = plan->cap;
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewLocalPolicy() { return std::make_unique<LocalPolicy>(); }

}  // namespace hydrant
