#include <algorithm>

#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"
#include "fmt/format.h"

namespace hydrant {
namespace {

// Scores the keys before the window; the earlier a key is chosen as centre, the higher.
class KCenterOrder final : public PromptScorer {
 public:
  std::string_view Name() const override { return "k-center"; }
  bool ScoresAttention() const override { return false; }
  const float* Score(const PromptLayer& layer) const override {
    const CachePlan& plan = *layer.plan;
    if (!plan.Compresses()) return nullptr;
    layer.backend->KCenter({.k = layer.kv.k,
                            .kv_head_stride = layer.kv.head_stride,
                            .num_kv_heads = layer.num_kv_heads,
                            .head_dim = layer.kv.head_dim,
                            .n = layer.n - plan.rule.recent,
                            .centres = plan.budget - plan.rule.recent,
                            .scores = layer.scores,
                            .score_stride = layer.stride});
    return layer.scores;
  }
};

// The variant that SubGen's authors measured (arXiv 2402.06082, section 3.2): keeps the last
// entries of the prompt and, before them, the centres of a greedy k-center of the keys
// (kernels/ops/kcenter.h): every evicted key is close to a kept one. Generated tokens are appended.
class SubGenKCenterPolicy final : public Policy {
 public:
  PolicyInfo Info() const override {
    return {"subgen-kcenter",
            "keeps of the prompt the last entries and those whose keys cover the others'; what is "
            "generated stays",
            {MaxCacheTokensParameter(),
             CacheRatioParameter(),
             MinCacheTokensParameter(),
             {"protected_window_size", "last entries of the prompt that stay", "half the budget",
              "[0, budget]"}}};
  }

  absl::Status Fill(const CacheSpec& spec, CachePlan* plan) const override {
    const int64_t window = spec.protected_window_size.value_or(plan->budget / 2);
    if (window > plan->budget) {
      return absl::InvalidArgumentError(
          fmt::format("cache.protected_window_size: {} is outside [0, {}], the budget", window,
                      RequestedBudget(spec, plan->budget)));
    }
    plan->rule.recent = static_cast<int32_t>(window);
    if (window < plan->budget) plan->scorer = std::make_shared<KCenterOrder>();
    plan->cap = kNoCap;
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Policy> NewSubGenKCenterPolicy() { return std::make_unique<SubGenKCenterPolicy>(); }

}  // namespace hydrant
