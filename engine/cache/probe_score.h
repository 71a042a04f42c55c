// What policies have in common that ask of a whole prompt, by a second reading of it or by an echo
// of the first, what of it will be looked at: scores are the sum of what the asking queries pay an
// entry and the most that one of them pays, weighted, and may be multiplied by the length of the
// entry's value, for an output takes both (VATP, arXiv 2406.12335, which takes the L1 norm).
#ifndef HYDRANT_ENGINE_CACHE_PROBE_SCORE_H_
#define HYDRANT_ENGINE_CACHE_PROBE_SCORE_H_

#include <vector>

#include "absl/status/status.h"
#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {

// What a policy's parameters are unless the request says otherwise.
struct ProbeDefaults {
  double max_weight = 5.0;
  bool value_norms = false;
};

inline constexpr ProbeDefaults kEchoDefaults = {.max_weight = 10.0, .value_norms = true};

std::vector<PolicyParameter> ProbeParameters(const ProbeDefaults& defaults);
// These, and which entries are protected. Errors as PlanCache's.
absl::Status FillProbe(const CacheSpec& spec, const ProbeDefaults& defaults, CachePlan* plan);

// PromptScore::kEcho, or kNone of a plan by which nothing will ever leave: then nothing is asked.
// REQUIRES: budget and cap are set.
const PromptScorer* EchoIfNeeded(const CachePlan& plan);

// The two statistics of queries from `first_query` on, and the score that is made of them.
std::vector<ColumnStatistic> ProbeStatistics(const CachePlan& plan, int32_t first_query);
const float* ProbeScores(const PromptLayer& layer);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PROBE_SCORE_H_
