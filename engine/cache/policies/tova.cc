#include <algorithm>

#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {
namespace {

// Scores by the last query's attention, averaged over the heads of the layer.
class LayerMean final : public WindowScorer {
 public:
  using WindowScorer::WindowScorer;
  std::string_view Name() const override { return "layer-mean"; }
  const float* Score(const PromptLayer& layer) const override {
    DeriveScoresArgs average = layer.Derivation();
    average.step = ScoreStep::kAverageHeads;
    layer.backend->DeriveScores(average);
    return average.out;
  }
};

// TOVA, token omission via attention (arXiv 2401.06104): every step evicts the entry with the
// smallest weight in the newest query's attention, averaged over all heads of the layer, so that
// all heads of a layer keep the same tokens. By default no entry is protected.
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
    plan->scorer = std::make_shared<LayerMean>(1);
    plan->rule.scored = true;
    plan->rule.decay = 0.0f;
    plan->rule.revision = Revision::kLayerMean;
    plan->rule.sinks =
        static_cast<int32_t>(std::min<int64_t>(spec.sink_tokens.value_or(0), kNoCap));
    plan->rule.recent =
        static_cast<int32_t>(std::min<int64_t>(spec.protected_window_size.value_or(0), kNoCap));
    return FillGroupReduce(spec, kReductions, plan);
  }
  const char* CheckMassGuarantee(const CachePlan&) const override {
    return "keeps the same entries in all heads of a layer";
  }
};

}  // namespace

std::unique_ptr<Policy> NewTovaPolicy() { return std::make_unique<TovaPolicy>(); }

}  // namespace hydrant
