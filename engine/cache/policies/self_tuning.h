// Self-tuning CO2: chooses decay, share of FIFO entries and number of measuring steps per request.
// The paper (section 4) leaves the choice to the user; here the request's own attention makes it.
// The prompt's last queries are held out and stand for future tokens. Each layer tries every pair
// of alpha and rho on the tokens before them. The pair with the largest retained mass of the
// held-out queries is chosen, or a pair with nearly as much and more FIFO entries. The held-out
// queries also give the attainable mass for the budget: the farther the pair is below it, the
// longer the prompt stays whole for measuring.
//
// A moving average over a long prompt cannot be gathered for every alpha. Queries count in two
// parts instead, early and late, each with its mean weight in the average.
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

inline constexpr int kHeldOutQueries = 32;  // last queries of the prompt, which judge the trials
inline constexpr int kLateQueries = 128;    // before the held-out queries; all others are early
// The last trial ranks by the attention of the held-out queries themselves: the attainable mass.
inline constexpr int kTrials = 13;
static_assert(kTrials <= kMaxObservations);

// CachePlan::state of a self-tuning plan, which is open until its prefill is done (kPrefilled).
struct SelfTuning final : PolicyState {
  int32_t max_steps = 0;  // limit of `steps`
  // Set by the decision: the choice, the held-out queries' attention that it retains, and the most
  // that any choice could retain.
  int trial = 0;
  double alpha = 0.0;
  double rho = 0.0;
  int32_t steps = 0;
  double retained = 0.0;
  double attainable = 0.0;
};
// Null: the plan is not self-tuning.
const SelfTuning* SelfTuningOf(const CachePlan& plan);
// The scorer of a self-tuning plan: runs the trials while the plan is open.
std::shared_ptr<const PromptScorer> NewTunedSums();

// Tokens seen at the compaction: the prompt, the question after it, if any, and `steps` generated
// tokens. With 0 steps the compaction comes before the question.
int32_t MeasuredUntil(const PromptShape& prompt, int64_t steps);

// Whether more tokens than the cap precede the held-out queries.
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
// How the trial ranks the tokens before the held-out queries. REQUIRES: CanTune(plan),
// 0 <= trial < kTrials
Trial TrialOf(const CachePlan& plan, int trial);

// The plan as decided by the trials. masses: [kTrials, heads] retained mass of each trial
// (kernels/ops/retained_mass.h), any number of heads. REQUIRES: the plan is open and self-tuning.
CachePlan Tuned(const CachePlan& plan, std::span<const float> masses);

// Policy::SaveDecision and RestoreDecision of a self-tuning plan.
std::string SaveTuning(const CachePlan& tuned);
absl::StatusOr<CachePlan> RestoreTuning(const CachePlan& open, std::string_view decision);

// Weights of the scores that decoding starts from; held-out queries now count as late. REQUIRES:
// the plan is decided.
ScoreWeights StartWeights(const CachePlan& plan);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICIES_SELF_TUNING_H_
