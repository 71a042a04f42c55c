// Self-tuning of co2: the weights of its trials, compared with explicit averages, and the choice
// from their masses.
#include "engine/cache/policies/self_tuning.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/engine/cache/plan_view.h"

namespace hydrant {
namespace {

CachePlan PlanOf(int64_t tokens, int budget, std::map<std::string, std::string> params = {}) {
  CacheSpec spec;
  spec.policy = "co2";
  spec.max_cache_tokens = budget;
  spec.params = std::move(params);
  spec.params["self_tuning"] = "true";
  const absl::StatusOr<CachePlan> plan = PlanCache(spec, {tokens, 2, 2});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Masses of 4 heads, all 0.2 except for the given trials.
std::vector<float> Masses(const std::vector<std::pair<int, float>>& better, float attainable) {
  std::vector<float> masses(4 * kTrials, 0.2f);
  for (const auto& [trial, mass] : better) std::fill_n(masses.begin() + 4 * trial, 4, mass);
  std::fill_n(masses.begin() + 4 * (kTrials - 1), 4, attainable);
  return masses;
}

bool IsOpen(const CachePlan& plan) { return plan.resolve_at == ResolveAt::kPrefilled; }

TEST(SelfTuning, IsOpenUntilItIsDecided) {
  const CachePlan plan = PlanOf(1000, 100);
  EXPECT_TRUE(IsOpen(plan));
  EXPECT_EQ(DelayedUntil(plan), 1064) << "64 steps at most";
  EXPECT_EQ(DelayedUntil(PlanOf(1000, 100, {{"measurement_steps", "7"}})), 1007);
  EXPECT_EQ(DelayedUntil(PlanOf(1000, 100, {{"measurement_steps", "0"}})), 1000);
  const CachePlan tuned = Tuned(plan, Masses({{5, 0.3f}}, 0.3f));
  EXPECT_FALSE(IsOpen(tuned));
  EXPECT_EQ(tuned.prompt.tokens, 1000);
  EXPECT_EQ(tuned.cap, 100);
}

// Tuning needs more tokens before the held-out queries than the budget holds.
TEST(SelfTuning, ShortPromptsTakeTheDefaults) {
  EXPECT_TRUE(IsOpen(PlanOf(133, 100)));
  const CachePlan plan = PlanOf(132, 100);
  EXPECT_EQ(SelfTuningOf(plan), nullptr);
  EXPECT_EQ(plan.rule.gain, 0.2f);
  EXPECT_EQ(plan.rule.recent, 25);
  EXPECT_EQ(DelayedUntil(plan), 132 + 64);
}

TEST(SelfTuning, WeightsAreMeansOfTheMovingAverages) {
  const CachePlan plan = PlanOf(700, 100);
  const std::vector<double> alphas = {0.0, 1.0 / 1024, 1.0 / 256, 1.0 / 64};
  const std::vector<int32_t> recents = {10, 25, 50};
  for (int t = 0; t + 1 < kTrials; ++t) {
    const Trial trial = TrialOf(plan, t);
    const double alpha = alphas[t / 3];
    double early = 0, late = 0;
    for (int age = 0; age < 668; ++age)
      (age < 128 ? late : early) += alpha == 0 ? 1 : alpha * std::pow(1 - alpha, age);
    EXPECT_NEAR(trial.weights.early, early / 540, 1e-6) << t;
    EXPECT_NEAR(trial.weights.late, late / 128, 1e-6) << t;
    EXPECT_EQ(trial.recent, recents[t % 3]);
    EXPECT_FALSE(trial.by_held_out);
  }
  EXPECT_TRUE(TrialOf(plan, kTrials - 1).by_held_out);
}

TEST(SelfTuning, TheBestPairIsTaken) {
  const CachePlan plan = PlanOf(1000, 100);
  for (int t = 0; t + 1 < kTrials; ++t) {
    const CachePlan tuned = Tuned(plan, Masses({{t, 0.5f}}, 0.6f));
    const double alpha = SelfTuningOf(tuned)->alpha;
    EXPECT_EQ(tuned.rule.recent, TrialOf(plan, t).recent) << t;
    EXPECT_FLOAT_EQ(tuned.rule.decay, 1.0 - alpha);
    EXPECT_FLOAT_EQ(tuned.rule.gain, alpha == 0 ? 1.0 : alpha);
    EXPECT_EQ(t / 3, alpha == 0.0 ? 0 : alpha < 0.002 ? 1 : alpha < 0.01 ? 2 : 3);
    EXPECT_NEAR(SelfTuningOf(tuned)->retained, 0.5, 1e-6);
    EXPECT_NEAR(SelfTuningOf(tuned)->attainable, 0.6, 1e-6);
    // The decided plan starts from the average over all queries, the held-out ones late.
    double late = 0;
    for (int age = 0; age < 160; ++age) late += alpha == 0 ? 1 : alpha * std::pow(1 - alpha, age);
    EXPECT_NEAR(StartWeights(tuned).late, late / 160, 1e-6);
  }
}

TEST(SelfTuning, TheChoiceIsRestored) {
  const CachePlan plan = PlanOf(1000, 100);
  CacheSpec spec;
  spec.policy = "co2";
  spec.max_cache_tokens = 100;
  spec.params["self_tuning"] = "true";
  for (int t = 0; t + 1 < kTrials; ++t) {
    const CachePlan tuned = Tuned(plan, Masses({{t, 0.5f}}, 0.6f));
    const auto restored = RestorePlan(spec, plan.prompt, SaveDecision(tuned));
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_FALSE(IsOpen(*restored));
    EXPECT_EQ(restored->rule.recent, tuned.rule.recent);
    EXPECT_EQ(restored->rule.decay, tuned.rule.decay);
    EXPECT_EQ(restored->rule.gain, tuned.rule.gain);
    EXPECT_EQ(DelayedUntil(*restored), DelayedUntil(tuned));
  }
  EXPECT_EQ(SaveDecision(plan), "") << "nothing has been";
}

// Differences below 2 % predict nothing; then the trial with more FIFO entries wins.
TEST(SelfTuning, OfNearEqualsTheOneWithMoreFifoEntriesIsTaken) {
  const CachePlan plan = PlanOf(1000, 100);
  SelfTuning chosen =
      *SelfTuningOf(Tuned(plan, Masses({{3, 0.500f}, {5, 0.495f}, {8, 0.493f}}, 0.6f)));
  EXPECT_EQ(chosen.rho, 0.5);
  EXPECT_EQ(chosen.alpha, 1.0 / 1024);
  chosen = *SelfTuningOf(Tuned(plan, Masses({{3, 0.500f}, {5, 0.485f}, {7, 0.495f}}, 0.6f)));
  EXPECT_EQ(chosen.rho, 0.25);
  EXPECT_EQ(chosen.alpha, 1.0 / 256);
  chosen = *SelfTuningOf(Tuned(plan, Masses({}, 0.6f)));
  EXPECT_EQ(chosen.rho, 0.5);
  EXPECT_EQ(chosen.alpha, 0.0) << "the first of equals";
}

// The larger the distance to the attainable mass, the longer the measurement.
TEST(SelfTuning, StepsFollowTheRegret) {
  const CachePlan plan = PlanOf(1000, 100, {{"measurement_steps", "40"}});
  EXPECT_EQ(SelfTuningOf(Tuned(plan, Masses({{3, 0.8f}}, 0.8f)))->steps, 0);
  EXPECT_EQ(SelfTuningOf(Tuned(plan, Masses({{3, 0.76f}}, 0.8f)))->steps, 20);
  EXPECT_EQ(SelfTuningOf(Tuned(plan, Masses({{3, 0.72f}}, 0.8f)))->steps, 40);
  EXPECT_EQ(SelfTuningOf(Tuned(plan, Masses({}, 0.8f)))->steps, 40);
  EXPECT_EQ(DelayedUntil(Tuned(plan, Masses({{3, 0.76f}}, 0.8f))), 1020);
  EXPECT_EQ(SelfTuningOf(Tuned(plan, std::vector<float>(4 * kTrials, 0.0f)))->steps, 0)
      << "nothing is received";
}

// A question's tokens are not measured steps. Without measured steps the compaction precedes the
// question.
TEST(SelfTuning, StepsAreCountedFromTheQuestionsEnd) {
  CachePlan plan = PlanOf(1000, 100, {{"measurement_steps", "40"}});
  plan.prompt.question_tokens = 30;
  EXPECT_EQ(DelayedUntil(Tuned(plan, Masses({{3, 0.76f}}, 0.8f))), 1050);
  EXPECT_EQ(DelayedUntil(Tuned(plan, Masses({{3, 0.8f}}, 0.8f))), 1000);
}

// With shared budgets FIFO entries keep every head from becoming empty.
TEST(SelfTuning, SharedBudgetsKeepARecentEntry) {
  const CachePlan plan = PlanOf(1000, 5, {{"budget_scope", "model"}});
  for (int t = 0; t + 1 < kTrials; ++t) EXPECT_GE(TrialOf(plan, t).recent, 1);
  EXPECT_EQ(TrialOf(PlanOf(1000, 5), 0).recent, 0);
}

}  // namespace
}  // namespace hydrant
