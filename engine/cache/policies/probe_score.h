// Scoring shared by policies that probe a prompt with its own queries: reconstruct by a second pass
// over it, echo by rotating the first pass's queries to positions after it. A score is the weighted
// sum of an entry's total and largest attention weight, optionally times the L2 norm of its value,
// since both determine the output (VATP, arXiv 2406.12335, with the L1 norm).
#ifndef HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_
#define HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {

// Default max_weight of an echo, and of a second pass.
inline constexpr double kEchoMaxWeight = 10.0;
inline constexpr double kSecondReadingMaxWeight = 5.0;

inline constexpr std::string_view kFalseFirst[] = {"false", "true"};  // of a parameter

// Parameters of such a policy: budgets, protection, score weights, decode cap and budget sharing.
std::vector<PolicyParameter> ProbeParameters(double default_max_weight);
// Fills in the plan by these parameters, except for the scorer, and returns the scorer's weights.
// By default all heads of all layers share the budget, with default_floor as the guaranteed part.
// Returns errors as PlanCache() does.
struct ProbeWeights {
  float sum = 1.0f;
  float max = 5.0f;
  bool value_norms = false;  // times the norm of the entry's value
};
absl::StatusOr<ProbeWeights> FillProbe(const CacheSpec& spec, double default_max_weight,
                                       CachePlan* plan, double default_floor = 0.0);

// Scores by the attention of the probing queries, or by a predictor alone if there are none.
class ProbeScorer final : public PromptScorer {
 public:
  struct Passes {
    bool second_reading = false;  // the queries of a second pass; echo may be set as well
    bool echo = false;            // the prompt's own queries, rotated to positions after it
    bool mass_by_echo = false;    // retained mass is measured on the echo's attention
    bool predicted = false;       // added to the score of a predictor
  };
  ProbeScorer(const ProbeWeights& weights, const Passes& passes)
      : weights_(weights), passes_(passes) {}

  const ProbeWeights& weights() const { return weights_; }
  const Passes& passes() const { return passes_; }

  std::string_view Name() const override;
  bool ReadsProbe() const override { return passes_.second_reading; }
  bool Predicts() const override { return passes_.predicted; }
  bool MeasuresMassByEcho() const override { return passes_.mass_by_echo; }
  // A turn is not read twice.
  std::optional<EchoScore> TurnScore() const override {
    if (passes_.predicted && !passes_.echo) return std::nullopt;
    return EchoScore{weights_.sum, weights_.max, weights_.value_norms};
  }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int read) const override;
  std::vector<ColumnStatistic> Echo(const CachePlan& plan) const override;
  const float* Score(const PromptLayer& layer) const override;

 private:
  ProbeWeights weights_;
  Passes passes_;
};

// Whether any entry may be evicted; if not, no scorer is needed. REQUIRES: budget, rule and
// retention are set.
inline bool MayEvict(const CachePlan& plan) {
  return plan.Compresses() || plan.rule.scored || plan.prompt.goes_on;
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_
