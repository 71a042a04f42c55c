#include <algorithm>

#include "engine/cache/policy_registry.h"
#include "fmt/format.h"

namespace hydrant {
namespace {

constexpr int64_t kDefaultSinks = 4;

// Attention sinks and a sliding window: the first `sink_tokens` and the last C - sink_tokens
// entries (StreamingLLM, arXiv 2309.17453, section 3.2), with the original RoPE positions unless
// `rolling`.
class StreamingPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"streaming",
            "keeps the first entries (attention sinks) and the last ones",
            {MaxCacheTokensParameter(),
             CacheRatioParameter(),
             MinCacheTokensParameter(),
             {"sink_tokens", "first entries that never leave", std::to_string(kDefaultSinks),
              "[0, budget - 1]"},
             RollingParameter()}};
  }
  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    const int64_t sinks = spec.sink_tokens.value_or(kDefaultSinks);
    if (sinks >= plan->cap) {
      return absl::InvalidArgumentError(fmt::format(
          "cache.sink_tokens: {} leaves no window in a budget of {} entries a head; at most {}",
          sinks, RequestedBudget(spec, plan->cap), RequestedBudget(spec, plan->cap) - 1));
    }
    plan->rule.scored = true;
    plan->rule.by_position = true;
    plan->rule.sinks = static_cast<int32_t>(sinks);
    plan->rule.recent = plan->cap - plan->rule.sinks;
    return FillRolling(spec, plan);
  }
};

}  // namespace

std::unique_ptr<Policy> NewStreamingPolicy() { return std::make_unique<StreamingPolicy>(); }

}  // namespace hydrant
