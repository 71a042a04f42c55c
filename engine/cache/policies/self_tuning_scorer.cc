#include <algorithm>

#include "engine/cache/policies/self_tuning.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {
namespace {

// Each trial selects entries before the held-out queries; its observation is their mass in these
// queries' attention.
void TryChoices(const PromptLayer& layer) {
  const auto [early, late, held_out] = layer.statistics;
  layer.KeepEqually(layer.plan->cap);
  for (int t = 0; t < kTrials; ++t) {
    const Trial trial = TrialOf(*layer.plan, t);
    DeriveScoresArgs add = layer.Derivation();
    add.b = late;
    add.weight_a = trial.weights.early;
    add.weight_b = trial.weights.late;
    add.n = layer.n - kHeldOutQueries;
    if (!trial.by_held_out) layer.backend->DeriveScores(add);
    layer.backend->Select({.scores = trial.by_held_out ? held_out : add.out,
                           .score_stride = layer.stride,
                           .num_kv_heads = layer.num_kv_heads,
                           .n = add.n,
                           .recent = trial.recent,
                           .keep = layer.keep,
                           .kept = layer.kept,
                           .kept_stride = layer.stride});
    layer.backend->KeptMass({.window_sums = held_out,
                             .window_stride = layer.stride,
                             .kept = layer.kept,
                             .kept_stride = layer.stride,
                             .keep = layer.keep,
                             .num_kv_heads = layer.num_kv_heads,
                             .queries = kHeldOutQueries,
                             .mass = layer.observations + t * layer.observation_stride});
  }
}

// Sums over the early, the late and the held-out queries. While the plan is open, the early sums
// are the scores; late and held-out sums, added up, are the second scores (ScoreMix).
class TunedSums final : public PromptScorer {
 public:
  std::string_view Name() const override { return "tuned-sums"; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int /*read*/) const override {
    const auto n = static_cast<int32_t>(plan.prompt.tokens);
    const int32_t held_out = n - kHeldOutQueries, late = held_out - kLateQueries;
    const GroupReduce reduce = plan.rule.reduce;
    return {{.reduce = reduce, .end_query = late},
            {.reduce = reduce, .first_query = std::max(0, late), .end_query = held_out},
            {.reduce = reduce, .first_query = held_out, .end_query = n}};
  }

  const float* Score(const PromptLayer& layer) const override {
    const bool open = IsOpen(*layer.plan);
    if (open) TryChoices(layer);
    DeriveScoresArgs add = layer.Derivation();
    add.a = add.out = layer.statistics[1];  // held-out queries now count as late
    add.b = layer.statistics[2];
    add.weight_b = 1.0f;
    layer.backend->DeriveScores(add);
    if (open) return layer.statistics[0];
    const ScoreWeights weights = StartWeights(*layer.plan);
    add = layer.Derivation();
    add.b = layer.statistics[1];
    add.weight_a = weights.early;
    add.weight_b = weights.late;
    layer.backend->DeriveScores(add);
    return add.out;
  }

  const float* Second(const PromptLayer& layer) const override {
    return IsOpen(*layer.plan) ? layer.statistics[1] : nullptr;
  }
  int NumObservations(const CachePlan& plan) const override { return IsOpen(plan) ? kTrials : 0; }
  ScoreMix Mix(const CachePlan& plan) const override {
    const ScoreWeights weights = StartWeights(plan);
    return {.of_score = weights.early, .of_second = weights.late};
  }

 private:
  static bool IsOpen(const CachePlan& plan) { return plan.resolve_at == ResolveAt::kPrefilled; }
};

}  // namespace

std::shared_ptr<const PromptScorer> NewTunedSums() { return std::make_shared<TunedSums>(); }

}  // namespace hydrant
