#include "engine/cache/policies/self_tuning.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "fmt/format.h"

namespace hydrant {
namespace {

// 0: a plain sum. The others average over about 1024, 256 and 64 queries.
constexpr std::array kAlphas = {0.0, 1.0 / 1024, 1.0 / 256, 1.0 / 64};
constexpr std::array kRhos = {0.1, 0.25, 0.5};
static_assert(kTrials == kAlphas.size() * kRhos.size() + 1);

// On SmolLM2, smaller differences in retained mass do not predict a difference in loss.
constexpr double kNearlyAsMuch = 0.02;
// A choice that misses this part of the attainable mass gets all measuring steps.
constexpr double kLargeRegret = 0.1;

// Mean weight of queries of age [begin, end) in a moving average; 0 if there are none.
double MeanWeight(double alpha, double begin, double end) {
  if (alpha == 0.0) return 1.0;
  if (begin >= end) return 0.0;
  return (std::pow(1.0 - alpha, begin) - std::pow(1.0 - alpha, end)) / (end - begin);
}

ScoreWeights WeightsOf(double alpha, int64_t queries, int64_t late) {
  late = std::min(late, queries);
  return {static_cast<float>(MeanWeight(alpha, late, queries)),
          static_cast<float>(MeanWeight(alpha, 0, late))};
}

double AlphaOf(int trial) { return kAlphas[trial / kRhos.size()]; }
double RhoOf(int trial) { return kRhos[trial % kRhos.size()]; }

int32_t FifoEntries(const CachePlan& plan, double rho) {
  // Where heads share a budget, a protected entry keeps every head non-empty.
  const int32_t least = plan.share.scope == BudgetScope::kHead ? 0 : 1;
  return std::max(least, static_cast<int32_t>(std::floor(rho * plan.cap)));
}

double MeanMass(std::span<const float> masses, int trial) {
  const auto of_trial = masses.subspan(trial * masses.size() / kTrials, masses.size() / kTrials);
  return std::accumulate(of_trial.begin(), of_trial.end(), 0.0) /
         static_cast<double>(of_trial.size());
}

// Among the pairs that retain nearly the most mass: the most FIFO entries, then the most mass. FIFO
// entries give generated tokens, unknown to the prompt, time to gather scores.
int ChooseTrial(std::span<const float> masses) {
  double most = 0.0;
  for (int trial = 0; trial < kTrials - 1; ++trial) most = std::max(most, MeanMass(masses, trial));
  int best = -1;
  for (int trial = 0; trial < kTrials - 1; ++trial) {
    if (MeanMass(masses, trial) < (1.0 - kNearlyAsMuch) * most) continue;
    const auto rank = [&](int t) { return std::pair(RhoOf(t), MeanMass(masses, t)); };
    if (best < 0 || rank(trial) > rank(best)) best = trial;
  }
  return best;
}

// The plan with the alpha and rho of the trial.
CachePlan Follow(const CachePlan& plan, int trial, SelfTuning tuning) {
  tuning.trial = trial;
  tuning.alpha = AlphaOf(trial);
  tuning.rho = RhoOf(trial);
  CachePlan tuned = plan;
  tuned.rule.decay = static_cast<float>(1.0 - tuning.alpha);
  tuned.rule.gain = tuning.alpha > 0.0 ? static_cast<float>(tuning.alpha) : 1.0f;
  tuned.rule.recent = FifoEntries(plan, tuning.rho);
  tuned.retention = std::make_shared<DelayedCompaction>(MeasuredUntil(plan.prompt, tuning.steps));
  tuned.resolve_at = ResolveAt::kResolved;
  tuned.state = std::make_shared<SelfTuning>(tuning);
  return tuned;
}

}  // namespace

const SelfTuning* SelfTuningOf(const CachePlan& plan) {
  return dynamic_cast<const SelfTuning*>(plan.state.get());
}

int32_t MeasuredUntil(const PromptShape& prompt, int64_t steps) {
  const int64_t tokens = prompt.tokens + (steps > 0 ? prompt.question_tokens + steps : 0);
  return static_cast<int32_t>(std::min<int64_t>(tokens, kNoCap - 1));
}

bool CanTune(const CachePlan& plan) { return plan.prompt.tokens - kHeldOutQueries > plan.cap; }

Trial TrialOf(const CachePlan& plan, int trial) {
  if (trial == kTrials - 1) return {.by_held_out = true};
  return {.weights = WeightsOf(AlphaOf(trial), plan.prompt.tokens - kHeldOutQueries, kLateQueries),
          .recent = FifoEntries(plan, RhoOf(trial))};
}

CachePlan Tuned(const CachePlan& plan, std::span<const float> masses) {
  const int best = ChooseTrial(masses);
  SelfTuning tuning = *SelfTuningOf(plan);
  tuning.retained = MeanMass(masses, best);
  tuning.attainable = MeanMass(masses, kTrials - 1);
  const double regret =
      tuning.attainable > 0.0 ? 1.0 - std::min(1.0, tuning.retained / tuning.attainable) : 0.0;
  tuning.steps =
      static_cast<int32_t>(std::lround(tuning.max_steps * std::min(1.0, regret / kLargeRegret)));
  return Follow(plan, best, tuning);
}

std::string SaveTuning(const CachePlan& tuned) {
  const SelfTuning& tuning = *SelfTuningOf(tuned);
  return fmt::format("{} {}", tuning.trial, tuning.steps);
}

absl::StatusOr<CachePlan> RestoreTuning(const CachePlan& open, std::string_view decision) {
  SelfTuning tuning = *SelfTuningOf(open);
  const size_t space = std::min(decision.find(' '), decision.size() - 1);
  int trial = 0;
  const bool parsed = absl::SimpleAtoi(std::string(decision.substr(0, space)), &trial) &&
                      absl::SimpleAtoi(std::string(decision.substr(space + 1)), &tuning.steps);
  const bool known = parsed && trial >= 0 && trial < kTrials - 1 && tuning.steps >= 0 &&
                     tuning.steps <= tuning.max_steps;
  if (!known)
    return absl::InvalidArgumentError(fmt::format("policy co2 has no choice '{}'", decision));
  return Follow(open, trial, tuning);
}

ScoreWeights StartWeights(const CachePlan& plan) {
  return WeightsOf(SelfTuningOf(plan)->alpha, plan.prompt.tokens, kLateQueries + kHeldOutQueries);
}

}  // namespace hydrant
