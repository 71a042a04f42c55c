// What policies have in common that ask of a whole prompt, by a second reading of it or by an echo
// of the first, what of it will be looked at: scores are the sum of the asking queries' attention
// to an entry and its largest weight, weighted, and may be multiplied by the length of the entry's
// value, for an output takes both (VATP, arXiv 2406.12335, which takes the L1 norm).
#ifndef HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_
#define HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {

// max_weight of an echo, and of a second reading, unless the request says otherwise.
inline constexpr double kEchoMaxWeight = 10.0;
inline constexpr double kSecondReadingMaxWeight = 5.0;

// The parameters of such a policy: budgets, protected entries, the weights of its scores, what may
// be appended while decoding, and how heads share.
std::vector<PolicyParameter> ProbeParameters(double default_max_weight);
// What those say but for the scorer, whose weights are returned. The budget is shared by all heads
// of all layers, and none has a part for certain. Errors as PlanCache's.
struct ProbeWeights {
  float sum = 1.0f;
  float max = 5.0f;
  bool value_norms = false;  // times the length of the entry's value
};
absl::StatusOr<ProbeWeights> FillProbe(const CacheSpec& spec, double default_max_weight,
                                       CachePlan* plan);

// By the attention of the asking queries.
class ProbeScorer final : public PromptScorer {
 public:
  struct Asks {
    bool second_reading = false;  // the queries of a second reading
    bool echo = false;            // and, or, the prompt's own from behind it
    bool echo_says_mass = false;  // retained mass is of an echo's attention
  };
  ProbeScorer(const ProbeWeights& weights, const Asks& asks) : weights_(weights), asks_(asks) {}

  const ProbeWeights& weights() const { return weights_; }
  const Asks& asks() const { return asks_; }

  std::string_view Name() const override;
  bool ReadsProbe() const override { return asks_.second_reading; }
  bool EchoSaysMass() const override { return asks_.echo_says_mass; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int read) const override;
  std::vector<ColumnStatistic> Echo(const CachePlan& plan) const override;
  const float* Score(const PromptLayer& layer) const override;

 private:
  ProbeWeights weights_;
  Asks asks_;
};

// Whether anything may ever leave: else nothing is asked. REQUIRES: budget, rule and life are set.
inline bool EverEvicts(const CachePlan& plan) { return plan.Compresses() || plan.rule.scored; }

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_
