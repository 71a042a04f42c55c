#include <algorithm>

#include "engine/cache/policy_registry.h"

namespace hydrant {
namespace {

// TOVA, token omission via attention (arXiv 2401.06104): at every step the entry
// leaves that the newest query weighs least, averaged over all heads of the layer, so that a layer
// keeps the same tokens in all its heads. Nothing is protected unless asked for.
class TovaPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"tova",
            "keeps what the newest token attends to, the same entries in all heads of a layer",
            {MaxCacheTokensParameter(),
             CacheRatioParameter(),
             MinCacheTokensParameter(),
             {"sink_tokens", "first entries that never leave", "0", "[0, budget]"},
             {"protected_window_size", "last entries that never leave, the incoming one included",
              "0", "[0, budget - sink_tokens]"},
             GroupReduceParameter(kReductions)}};
  }
  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    plan->prompt_score = PromptScore::kWindow;
    plan->window.queries = 1;
    plan->rule.scored = true;
    plan->rule.decay = 0.0f;
    plan->rule.revision = Revision::kLayerMean;
    plan->rule.sinks =
        static_cast<int32_t>(std::min<int64_t>(spec.sink_tokens.value_or(0), kNoCap));
    plan->rule.recent =
        static_cast<int32_t>(std::min<int64_t>(spec.protected_window_size.value_or(0), kNoCap));
    return FillGroupReduce(spec, kReductions, plan);
  }
};

}  // namespace

std::unique_ptr<Policy> NewTovaPolicy() { return std::make_unique<TovaPolicy>(); }

}  // namespace hydrant
