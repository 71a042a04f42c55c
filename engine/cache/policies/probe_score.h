// What policies have in common that ask of a whole prompt, by a second reading of it or by an echo
// of the first, what of it will be looked at: scores are the sum of what the asking queries pay an
// entry and the most that one of them pays, weighted, and may be multiplied by the length of the
// entry's value, for an output takes both (VATP, arXiv 2406.12335, which takes the L1 norm).
#ifndef HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_
#define HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_

#include <vector>

#include "absl/status/status.h"
#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {

// max_weight of an echo, and of a second reading, unless the request says otherwise.
inline constexpr double kEchoMaxWeight = 10.0;
inline constexpr double kSecondReadingMaxWeight = 5.0;

// The parameters of such a policy: budgets, protected entries, the weights of its scores, what may
// be appended while decoding, and how heads share.
std::vector<PolicyParameter> ProbeParameters(double default_max_weight);
// What those say. The budget is shared by all heads of all layers, and none has a part for certain.
// Errors as PlanCache's.
absl::Status FillProbe(const CacheSpec& spec, double default_max_weight, CachePlan* plan);

// PromptScore::kEcho, or kNone of a plan by which nothing will ever leave: then nothing is asked.
// REQUIRES: budget and cap are set.
const PromptScorer* EchoIfNeeded(const CachePlan& plan);

// The two statistics of queries from `first_query` on, and the score that is made of them.
std::vector<ColumnStatistic> ProbeStatistics(const CachePlan& plan, int32_t first_query);
const float* ProbeScores(const PromptLayer& layer);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICIES_PROBE_SCORE_H_
