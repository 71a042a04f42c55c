// CO2 by itself: which decay, which share of FIFO entries and how many measuring steps a request
// gets. Its paper (section 4) leaves the choice to the user; here the request's own attention makes
// it. The prompt's last queries are held out and stand for the tokens to come. What every pair of
// alpha and rho would have kept of the prompt before them is tried in each layer, and a pair is
// taken whose choices these queries attend to most, or nearly as much and more are FIFO.
// They also say what the same budget could have retained had it known: the farther off the best
// pair is, the longer the prompt stays whole to be measured.
//
// A moving average over all of a long prompt cannot be gathered for every alpha. The queries count
// in two parts instead, early and late ones, each with the mean weight that the average gives it.
#ifndef HYDRANT_ENGINE_CACHE_POLICIES_SELF_TUNING_H_
#define HYDRANT_ENGINE_CACHE_POLICIES_SELF_TUNING_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {

inline constexpr int kHeldOutQueries = 32;  // the prompt's last: trials are judged by them
inline constexpr int kLateQueries = 128;    // before these; all others are early
// The last one ranks by the attention of the held-out queries: no choice retains more.
inline constexpr int kTrials = 13;
static_assert(kTrials <= kMaxObservations);

// CachePlan::state of a plan that tunes itself: OpenUntil::kPromptRead, and decided from then on.
struct SelfTuning final : PolicyState {
  int32_t most_steps = 0;  // generated tokens for which the prompt may stay whole
  // Once decided: what was chosen, and the attention of the held-out queries that it would have
  // retained, and that any choice could have.
  int trial = 0;
  double alpha = 0.0;
  double rho = 0.0;
  int32_t steps = 0;
  double retained = 0.0;
  double attainable = 0.0;
};
// Null where the plan does not tune itself.
const SelfTuning* SelfTuningOf(const CachePlan& plan);
// Its scorer: makes the trials while the plan is open.
std::shared_ptr<const PromptScorer> NewTunedSums();

// Tokens that have been seen when the cut comes: the prompt, the question that follows it, if one
// does, and `steps` generated tokens. With 0 steps the cut comes before the question.
int32_t MeasuredUntil(const PromptShape& prompt, int64_t steps);

// Whether there is anything to choose from before the held-out queries.
bool CanTune(const CachePlan& plan);

// score = early * (sum over the early queries) + late * (sum over the late ones)
struct ScoreWeights {
  float early = 1.0f;
  float late = 1.0f;
};
struct Trial {
  ScoreWeights weights = {};
  int32_t recent = 0;
  bool by_held_out = false;  // the scores are the attention of the held-out queries
};
// 0 <= trial < kTrials, of the CanTune() plan's prompt without its held-out queries.
Trial TrialOf(const CachePlan& plan, int trial);

// The plan as the trials decide it. masses: [kTrials, heads] retained by each (kernels/
// retained_mass.h), any number of heads. REQUIRES: the plan is open and tunes itself.
CachePlan Tuned(const CachePlan& plan, std::span<const float> masses);

// Policy::SaveDecision and RestoreDecision, of a plan that tunes itself.
std::string SaveTuning(const CachePlan& tuned);
absl::StatusOr<CachePlan> RestoreTuning(const CachePlan& open, std::string_view decision);

// Of a decided plan: the scores that decoding starts from, the held-out queries being late ones
// now.
ScoreWeights StartWeights(const CachePlan& plan);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICIES_SELF_TUNING_H_
