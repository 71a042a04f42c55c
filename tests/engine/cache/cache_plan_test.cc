#include "engine/cache/cache_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/cache/engine_limits.h"
#include "engine/cache/policy_registry.h"
#include "tests/engine/cache/plan_view.h"

namespace hydrant {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

CacheSpec Spec(std::string policy) {
  CacheSpec spec;
  spec.policy = std::move(policy);
  return spec;
}

// A prompt on a model with a score predictor where the policy needs one.
PromptShape ShapeFor(std::string_view policy, PromptShape prompt) {
  prompt.predicts_scores = policy == "learned";
  return prompt;
}

std::string ErrorOf(const CacheSpec& spec, int64_t prompt_tokens = 100) {
  const absl::StatusOr<CachePlan> plan = PlanCache(spec, {prompt_tokens});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(plan.status().message());
}

TEST(CachePlan, FullKeepsEverything) {
  const CachePlan plan = *PlanCache(Spec("full"), {5000});
  EXPECT_EQ(plan.cap, kNoCap);
  EXPECT_FALSE(plan.rule.scored);
  EXPECT_EQ(plan.EntriesAfter(123456), 123456);
}

TEST(CachePlan, RatioHasAFloor) {
  CacheSpec spec = Spec("h2o");
  spec.cache_ratio = 0.2;
  EXPECT_EQ(PlanCache(spec, {1000})->cap, 200);
  EXPECT_EQ(PlanCache(spec, {1001})->cap, 201);
  EXPECT_EQ(PlanCache(spec, {38})->cap, 128) << "a short chat is never starved";
  spec.min_cache_tokens = 0;
  EXPECT_EQ(PlanCache(spec, {38})->cap, 8);
  spec.cache_ratio = 0.07;
  EXPECT_EQ(PlanCache(spec, {100})->cap, 7) << "0.07 * 100 is 7.000000000000001 in binary";
}

TEST(CachePlan, MaxAloneSetsAndWithARatioBounds) {
  CacheSpec spec = Spec("h2o");
  spec.max_cache_tokens = 64;
  EXPECT_EQ(PlanCache(spec, {1000})->cap, 64) << "the floor applies to the ratio only";
  spec.cache_ratio = 0.5;
  EXPECT_EQ(PlanCache(spec, {1000})->cap, 64);
  spec.max_cache_tokens = 600;
  EXPECT_EQ(PlanCache(spec, {1000})->cap, 500);
}

TEST(CachePlan, ProtectionDefaults) {
  CacheSpec spec = Spec("h2o");
  spec.max_cache_tokens = 65;
  EXPECT_EQ(PlanCache(spec, {1000})->rule.recent, 32);
  spec.sink_tokens = 4;
  EXPECT_EQ(PlanCache(spec, {1000})->rule.recent, 30);
  spec.protected_window_size = 0;
  EXPECT_EQ(PlanCache(spec, {1000})->rule.recent, 0);
  spec = Spec("streaming");
  spec.max_cache_tokens = 65;
  EXPECT_EQ(PlanCache(spec, {1000})->rule.sinks, 4);
  EXPECT_EQ(PlanCache(spec, {1000})->rule.recent, 61);
  spec = Spec("local");
  spec.max_cache_tokens = 65;
  EXPECT_EQ(PlanCache(spec, {1000})->rule.recent, 65);
}

TEST(CachePlan, RollingIsAParameterOfStreamingAndH2o) {
  for (const char* policy : {"streaming", "h2o"}) {
    CacheSpec spec = Spec(policy);
    spec.max_cache_tokens = 65;
    EXPECT_FALSE(PlanCache(spec, {1000})->rule.rolling);
    spec.params["rolling"] = "false";
    EXPECT_FALSE(PlanCache(spec, {1000})->rule.rolling);
    spec.params["rolling"] = "true";
    EXPECT_TRUE(PlanCache(spec, {1000})->rule.rolling);
    spec.params["rolling"] = "yes";
    EXPECT_EQ(ErrorOf(spec), "cache.params.rolling: 'yes' is none of false, true");
  }
  CacheSpec spec = Spec("local");
  spec.max_cache_tokens = 65;
  spec.params["rolling"] = "true";
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params: 'rolling' is no parameter of policy local"));
}

// The budget bounds the prompt; later tokens are appended, up to decode_cap if it is set.
TEST(CachePlan, SnapKvCutsThePromptAlone) {
  CacheSpec spec = Spec("snapkv");
  spec.max_cache_tokens = 100;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.budget, 100);
  EXPECT_EQ(plan.cap, kNoCap);
  EXPECT_EQ(plan.retention->InitialSpan(plan, 0).dropped, 900);
  EXPECT_EQ(plan.EntriesAfter(1000), 100);
  EXPECT_EQ(plan.EntriesAfter(1500), 600);
  EXPECT_EQ(WindowOf(plan), 32);
  EXPECT_EQ(ScorerAs<PooledWindow>(plan)->kernel(), 7);
  EXPECT_EQ(ScorerAs<PooledWindow>(plan)->pooling(), Pooling::kMax);
  EXPECT_FALSE(plan.rule.scored);
  plan = *PlanCache(spec, {80});
  EXPECT_EQ(plan.retention->InitialSpan(plan, 0).dropped, 0);
  EXPECT_EQ(plan.EntriesAfter(80), 80);
  spec.max_cache_tokens = 20;
  spec.params = {{"decode_cap", "30"}, {"pooling", "avg"}, {"kernel_size", "3"}};
  plan = *PlanCache(spec, {1000});
  EXPECT_EQ(WindowOf(plan), 10) << "at most half the budget unless asked for";
  EXPECT_EQ(plan.EntriesAfter(1000), 20);
  EXPECT_EQ(plan.EntriesAfter(1007), 27);
  EXPECT_EQ(plan.EntriesAfter(2000), 30);
  EXPECT_TRUE(plan.rule.scored);
  EXPECT_EQ(ScorerAs<PooledWindow>(plan)->pooling(), Pooling::kMean);
}

TEST(CachePlan, SnapKvsErrorsNameTheParameter) {
  CacheSpec spec = Spec("snapkv");
  spec.max_cache_tokens = 100;
  const auto error_with = [&](const std::string& name, const std::string& value) {
    spec.params = {{name, value}};
    return ErrorOf(spec, 1000);
  };
  EXPECT_THAT(error_with("kernel_size", "6"),
              AllOf(StartsWith("cache.params.kernel_size: 6 is not odd"), HasSubstr("[1, 63]")));
  for (const char* bad : {"", "0", "65", "7x", " 7", "1e1", "99999999999999999999"}) {
    EXPECT_THAT(error_with("kernel_size", bad),
                AllOf(StartsWith("cache.params.kernel_size: '"), HasSubstr("[1, 63]")));
  }
  EXPECT_THAT(error_with("pooling", "median"),
              AllOf(StartsWith("cache.params.pooling: 'median'"), HasSubstr("max, avg")));
  EXPECT_THAT(error_with("decode_cap", "99"),
              AllOf(StartsWith("cache.params.decode_cap: '99'"), HasSubstr("[100, ")));
  EXPECT_THAT(error_with("alpha", "1"),
              StartsWith("cache.params: 'alpha' is no parameter of policy snapkv; one of "));
  spec.params.clear();
  spec.protected_window_size = 0;
  EXPECT_THAT(ErrorOf(spec, 1000),
              AllOf(StartsWith("cache.protected_window_size: 0"), HasSubstr("at least 1")));
  spec.protected_window_size = 101;
  EXPECT_THAT(ErrorOf(spec, 1000), StartsWith("cache.max_cache_tokens: the budget of 100"));
}

// The full prompt until the end of the measurement, then C entries at once.
TEST(CachePlan, Co2KeepsThePromptForAWhile) {
  CacheSpec spec = Spec("co2");
  spec.max_cache_tokens = 101;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(DelayedUntil(plan), 1020);
  EXPECT_EQ(plan.EntriesAfter(1000), 1000);
  EXPECT_EQ(plan.EntriesAfter(1020), 1020);
  EXPECT_EQ(plan.EntriesAfter(1021), 101);
  EXPECT_EQ(plan.PeakEntries(1010), 1010);
  EXPECT_EQ(plan.PeakEntries(5000), 1020);
  EXPECT_EQ(plan.rule.recent, 25);
  EXPECT_FLOAT_EQ(plan.rule.decay, 0.8f);
  EXPECT_FLOAT_EQ(plan.rule.gain, 0.2f);
  EXPECT_EQ(DelayedUntil(*PlanCache(spec, {81})), 0) << "101 entries are within the budget";
  EXPECT_EQ(DelayedUntil(*PlanCache(spec, {82})), 102);
  spec.params = {
      {"alpha", "0"}, {"measurement_steps", "0"}, {"rho", "1"}, {"initial_score", "mean"}};
  plan = *PlanCache(spec, {1000});
  EXPECT_EQ(DelayedUntil(plan), 0);
  EXPECT_EQ(plan.rule.decay, 1.0f);
  EXPECT_EQ(plan.rule.gain, 1.0f);
  EXPECT_EQ(plan.rule.recent, 101);
  EXPECT_EQ(plan.scorer->Scale(plan), 1.0f / static_cast<float>(plan.prompt.tokens));
  spec.params = {{"alpha", "1.5"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.alpha: '1.5' is not a number in [0, 1]"));
  for (const char* bad : {"", "nan", "0.1x", "-0.1", "inf"}) {
    spec.params = {{"rho", bad}};
    EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.rho: '"));
  }
  spec.params = {{"measurement_steps", "-1"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.measurement_steps: '-1'"));
}

// The question attends to the full prompt but is not measured: measured steps are generated tokens.
TEST(CachePlan, Co2MeasuresAfterTheQuestion) {
  CacheSpec spec = Spec("co2");
  spec.max_cache_tokens = 101;
  PromptShape shape = {.tokens = 1000, .question_tokens = 30};
  CachePlan plan = *PlanCache(spec, shape);
  EXPECT_EQ(DelayedUntil(plan), 1050);
  EXPECT_EQ(plan.PeakEntries(5000), 1050);
  EXPECT_EQ(plan.EntriesAfter(1051), 101);
  shape.tokens = 60;
  EXPECT_EQ(DelayedUntil(*PlanCache(spec, shape)), 110) << "the budget is exceeded by then";
  spec.params = {{"measurement_steps", "0"}};
  shape.tokens = 1000;
  EXPECT_EQ(DelayedUntil(*PlanCache(spec, shape)), 0) << "cut at once, before the question";
}

TEST(CachePlan, Co2SharesItsBudgetWhenItCuts) {
  CacheSpec spec = Spec("co2");
  spec.max_cache_tokens = 100;
  spec.params = {{"budget_scope", "layer"}};
  const PromptShape shape = {1000, 3, 4};
  CachePlan plan = *PlanCache(spec, shape);
  EXPECT_TRUE(IsCompactedUnevenly(plan));
  EXPECT_FALSE(IsReported(plan)) << "the prompt is whole first";
  EXPECT_EQ(plan.EntriesAfter(1020), 1020);
  // 25 are protected; a fifth of the other 75 is equal in all heads, and one head can get the other
  // four fifths of all four heads: 25 + 15 + 240.
  EXPECT_EQ(plan.EntriesAfter(1021), 280);
  EXPECT_EQ(plan.EntriesAfter(5000), 280);
  spec.params = {{"budget_scope", "model"}, {"head_floor", "0"}};
  EXPECT_EQ(PlanCache(spec, shape)->EntriesAfter(1021), 25 + 12 * 75);
  spec.max_cache_tokens = 500;
  EXPECT_EQ(PlanCache(spec, shape)->EntriesAfter(1021), 1020) << "no more than there are";
  // Without measured steps the prompt is compacted at once, and all its entries are candidates.
  spec.params["measurement_steps"] = "0";
  plan = *PlanCache(spec, shape);
  EXPECT_FALSE(IsCompactedUnevenly(plan));
  EXPECT_TRUE(HasCandidates(plan));
  EXPECT_EQ(MaxKeep(plan), 1000);
  spec.params = {{"budget_scope", "layer"}, {"rho", "0.001"}};
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.params.rho: '0.001'"), HasSubstr("at least 0.002")));
  spec.params = {{"budget_scope", "galaxy"}};
  EXPECT_THAT(ErrorOf(spec),
              StartsWith("cache.params.budget_scope: 'galaxy' is none of head, layer"));
}

TEST(CachePlan, Co2TunesItselfOrTakesParameters) {
  CacheSpec spec = Spec("co2");
  spec.max_cache_tokens = 100;
  for (const char* name : {"alpha", "rho", "initial_score"}) {
    spec.params = {{"self_tuning", "true"}, {name, "0.5"}};
    EXPECT_THAT(ErrorOf(spec), AllOf(StartsWith(std::string("cache.params.") + name + ": '0.5'"),
                                     HasSubstr("self_tuning")));
  }
  spec.params = {{"self_tuning", "yes"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.self_tuning: 'yes' is none of false, true"));
  spec.params = {{"self_tuning", "true"}, {"measurement_steps", "-1"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.measurement_steps: '-1'"));
}

TEST(CachePlan, TovaProtectsNothingByDefault) {
  CacheSpec spec = Spec("tova");
  spec.max_cache_tokens = 64;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.Protected(), 0);
  EXPECT_EQ(WindowOf(plan), 1);
  EXPECT_EQ(plan.EntriesAfter(1000), 64);
  EXPECT_EQ(plan.EntriesAfter(2000), 64);
  spec.sink_tokens = 4;
  spec.protected_window_size = 60;
  EXPECT_EQ(PlanCache(spec, {1000})->Protected(), 64);
  spec.protected_window_size = 61;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.max_cache_tokens: the budget of 64"));
  spec = Spec("tova");
  spec.max_cache_tokens = 64;
  spec.min_retained_mass = 0.5;
  EXPECT_THAT(ErrorOf(spec), AllOf(StartsWith("cache.min_retained_mass: 0.5"),
                                   HasSubstr("the same entries in all heads")));
  spec.min_retained_mass.reset();
  spec.params = {{"budget_scope", "layer"}};
  EXPECT_THAT(ErrorOf(spec),
              StartsWith("cache.params: 'budget_scope' is no parameter of policy tova"));
}

TEST(CachePlan, RandomProtectsSinksAndHalfOfTheRest) {
  CacheSpec spec = Spec("random");
  spec.max_cache_tokens = 65;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.rule.sinks, 4);
  EXPECT_EQ(plan.rule.recent, 30);
  EXPECT_EQ(plan.rule.seed, 0u);
  spec.max_cache_tokens = 3;
  EXPECT_EQ(PlanCache(spec, {1000})->rule.sinks, 2);
  spec.max_cache_tokens = 1;
  EXPECT_EQ(PlanCache(spec, {1000})->Protected(), 0);
  spec.params = {{"seed", "9223372036854775807"}};
  EXPECT_EQ(PlanCache(spec, {1000})->rule.seed, 9223372036854775807u);
  spec.params = {{"seed", "-1"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.seed: '-1'"));
  spec.params.clear();
  spec.max_cache_tokens = 64;
  spec.min_retained_mass = 0.5;
  EXPECT_TRUE(HasCandidates(*PlanCache(spec, {1000})));
}

// Compacts to C - m entries, grows to C, compacts again.
TEST(CachePlan, ScissorhandsDropsManyAtOnce) {
  CacheSpec spec = Spec("scissorhands");
  spec.max_cache_tokens = 101;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(DropOf(plan), 50);
  EXPECT_EQ(plan.rule.recent, 10);
  EXPECT_EQ(plan.rule.history, 50);
  EXPECT_EQ(WindowOf(plan), 400);
  EXPECT_EQ(plan.retention->CompactionAfter(plan, 1050).keep, std::vector<int32_t>{51});
  EXPECT_EQ(KeptOfPrompt(plan, 0), 51);
  int32_t held = 51, most = 51;
  for (int64_t tokens = 1000; tokens < 1300; ++tokens) {
    EXPECT_EQ(plan.EntriesAfter(tokens), held);
    EXPECT_EQ(plan.PeakEntries(tokens), most);
    EXPECT_EQ(plan.CompactsAfter(tokens), held == 101);
    if (plan.CompactsAfter(tokens)) held = 51;
    most = std::max(most, ++held);
  }
  plan = *PlanCache(spec, {101});
  EXPECT_EQ(KeptOfPrompt(plan, 0), 101) << "the budget is not exceeded";
  EXPECT_TRUE(plan.CompactsAfter(101));
  EXPECT_EQ(plan.EntriesAfter(102), 52);
  EXPECT_EQ(WindowOf(plan), 50) << "those before the first drop";
  EXPECT_EQ(WindowOf(*PlanCache(spec, {60})), 9);
  EXPECT_EQ(WindowOf(*PlanCache(spec, {40})), 0);
  spec.params = {{"history_window", "7"}, {"drop_tokens", "100"}};
  plan = *PlanCache(spec, {1000});
  EXPECT_EQ(WindowOf(plan), 7);
  EXPECT_EQ(plan.rule.history, 7);
  EXPECT_EQ(plan.rule.recent, 1);
  EXPECT_EQ(plan.retention->CompactionAfter(plan, 1050).keep, std::vector<int32_t>{1});
}

TEST(CachePlan, ScissorhandsErrorsNameFieldAndRange) {
  CacheSpec spec = Spec("scissorhands");
  spec.max_cache_tokens = 1;
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.max_cache_tokens: "), HasSubstr("at least 2")));
  spec.max_cache_tokens.reset();
  spec.cache_ratio = 0.01;
  spec.min_cache_tokens = 0;
  EXPECT_THAT(ErrorOf(spec), AllOf(StartsWith("cache.cache_ratio: "), HasSubstr("at least 2")));
  spec.cache_ratio.reset();
  spec.max_cache_tokens = 20;
  spec.params = {{"drop_tokens", "20"}};
  EXPECT_THAT(ErrorOf(spec), AllOf(StartsWith("cache.params.drop_tokens: '20'"), HasSubstr("19]")));
  spec.params = {{"history_window", "0"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.history_window: '0'"));
  spec.params = {{"group_reduce", "sum_of_squares"}};
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.params.group_reduce: "), HasSubstr("mean, max")));
  spec.params.clear();
  spec.protected_window_size = 11;
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.protected_window_size: "), HasSubstr("the 10 ")));
  spec.protected_window_size = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.protected_window_size: "));
  spec.protected_window_size.reset();
  spec.sink_tokens = 11;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.sink_tokens: "));
  spec.sink_tokens.reset();
  spec.min_retained_mass = 0.5;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.min_retained_mass: 0.5"));
}

// Window, value samples and clusters add up to the budget.
TEST(CachePlan, SubGenSplitsItsBudget) {
  const auto split = [](const CacheSpec& spec) {
    const CachePlan plan = *PlanCache(spec, {1000});
    EXPECT_EQ(plan.retention->Samples()->Capacity(), plan.cap);
    EXPECT_EQ(plan.rule.recent, plan.retention->Samples()->recent);
    EXPECT_TRUE(plan.rule.weighted);
    EXPECT_FALSE(plan.rule.scored);
    return std::vector<int>{
        plan.retention->Samples()->recent, plan.retention->Samples()->value_samples,
        plan.retention->Samples()->cluster_samples, plan.retention->Samples()->max_clusters};
  };
  CacheSpec spec = Spec("subgen");
  spec.max_cache_tokens = 128;
  EXPECT_EQ(split(spec), (std::vector<int>{64, 32, 4, 8}));
  spec.params = {{"cluster_samples", "5"}};
  EXPECT_EQ(split(spec), (std::vector<int>{66, 32, 5, 6})) << "what is left joins the window";
  spec.params = {{"value_samples", "100"}, {"cluster_samples", "2"}};
  EXPECT_EQ(split(spec), (std::vector<int>{26, 100, 2, 1})) << "the default window makes room";
  spec.protected_window_size = 20;
  spec.params = {{"value_samples", "40"}, {"max_clusters", "3"}};
  EXPECT_EQ(split(spec), (std::vector<int>{76, 40, 4, 3}));
  spec = Spec("subgen");
  spec.max_cache_tokens = 132;
  spec.sink_tokens = 4;
  EXPECT_EQ(PlanCache(spec, {1000})->retention->Samples()->sinks, 4);
  EXPECT_EQ(split(spec), (std::vector<int>{64, 32, 4, 8}));
  for (int budget = 4; budget < 70; ++budget) {
    spec = Spec("subgen");
    spec.max_cache_tokens = budget;
    const std::vector<int> parts = split(spec);
    EXPECT_GE(parts[0], std::max(2, budget / 2)) << budget;
    for (int i = 1; i < 4; ++i) EXPECT_GE(parts[i], 1) << budget;
  }
}

TEST(CachePlan, SubGenKeepsAllEntriesUpToItsBudget) {
  CacheSpec spec = Spec("subgen");
  spec.max_cache_tokens = 100;
  EXPECT_EQ(DelayedUntil(*PlanCache(spec, {101})), 0);
  const CachePlan plan = *PlanCache(spec, {100});
  EXPECT_EQ(DelayedUntil(plan), 100);
  EXPECT_EQ(plan.EntriesAfter(99), 99);
  EXPECT_EQ(plan.EntriesAfter(100), 100);
  EXPECT_EQ(plan.EntriesAfter(5000), 100);
  spec.max_cache_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(PlanCache(spec, {100})->EntriesAfter(1 << 20), 1 << 20);
}

TEST(CachePlan, SubGenErrorsNameFieldAndRange) {
  CacheSpec spec = Spec("subgen");
  spec.max_cache_tokens = 3;
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.max_cache_tokens: "), HasSubstr("at least 4")));
  spec.max_cache_tokens = 32;
  spec.sink_tokens = 29;
  EXPECT_THAT(ErrorOf(spec), AllOf(StartsWith("cache.sink_tokens: 29"), HasSubstr("[0, 28]")));
  spec.sink_tokens.reset();
  for (const int window : {0, 1, 31, 32, 1000}) {
    spec.protected_window_size = window;
    EXPECT_THAT(ErrorOf(spec),
                AllOf(StartsWith("cache.protected_window_size: " + std::to_string(window)),
                      HasSubstr("[2, 30]")));
  }
  spec.protected_window_size = 20;
  spec.params = {{"value_samples", "12"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.value_samples: '12' is not a whole number in "
                                        "[1, 11]"));
  spec.params = {{"value_samples", "8"}, {"cluster_samples", "5"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.cluster_samples: '5' is not a whole number "
                                        "in [1, 4]"));
  spec.params = {{"value_samples", "4"}, {"max_clusters", "3"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.max_clusters: '3' is not a whole number in "
                                        "[1, 2]"));
  spec.params = {{"delta", "-1"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.delta: '-1'"));
  spec.params = {{"delta_growth", "1"}};
  EXPECT_THAT(ErrorOf(spec),
              StartsWith("cache.params.delta_growth: '1' is not a number in [1.1, "));
  spec.params = {{"sample_seed", "-1"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.sample_seed: '-1'"));
}

TEST(CachePlan, KCenterBoundsThePrompt) {
  CacheSpec spec = Spec("subgen-kcenter");
  spec.max_cache_tokens = 33;
  CachePlan plan = *PlanCache(spec, {100});
  EXPECT_EQ(plan.scorer->Name(), "k-center");
  EXPECT_EQ(plan.rule.recent, 16);
  EXPECT_EQ(plan.EntriesAfter(100), 33);
  EXPECT_EQ(plan.EntriesAfter(130), 63);
  EXPECT_EQ(PlanCache(spec, {20})->EntriesAfter(20), 20);
  spec.protected_window_size = 33;
  EXPECT_EQ(PlanCache(spec, {100})->scorer->Name(), "none") << "no centre to choose";
  spec.protected_window_size = 34;
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.protected_window_size: 34"), HasSubstr("[0, 33]")));
}

// The line of the paper (arXiv 2406.02069, section 4.2) in real numbers, with base = C - window:
// the last layer gets base / beta, the first layer the value that makes the mean base; both are
// adjusted if the first layer's value exceeds the prompt.
std::vector<double> PyramidLine(int budget, int window, int n, int beta, int layers) {
  const int base = budget - window;
  const int most = std::min(2 * base - base / beta, n - window);
  std::vector<double> line(layers);
  for (int layer = 0; layer < layers; ++layer)
    line[layer] = window + most - layer * 2.0 * (most - base) / (layers - 1);
  return line;
}

// Every layer's part differs from the line by less than an entry, rounded up in the lower half of
// the layers and down in the upper half; parts never increase, and add up to the budget.
TEST(CachePlan, PyramidIsThePapersLine) {
  for (const int layers : {2, 3, 12, 30, 32, 61}) {
    for (const int budget : {9, 10, 20, 40, 51, 128, 1000}) {
      for (const int beta : {1, 2, 3, 20, 1000}) {
        for (const int n : {budget + 1, budget + 7, 2 * budget - 8, 253, 5000}) {
          if (n <= budget) continue;
          SCOPED_TRACE(testing::Message() << layers << " layers, C " << budget << ", beta " << beta
                                          << ", " << n << " tokens");
          CacheSpec spec = Spec("pyramidkv");
          spec.max_cache_tokens = budget;
          spec.protected_window_size = 8;
          spec.params = {{"beta", std::to_string(beta)}};
          const CachePlan plan = *PlanCache(spec, {n, layers, 2});
          const std::vector<int32_t>& keep = plan.layer_budgets;
          const std::vector<double> line = PyramidLine(budget, 8, n, beta, layers);
          ASSERT_EQ(keep.size(), line.size());
          EXPECT_EQ(std::accumulate(keep.begin(), keep.end(), 0), layers * budget);
          EXPECT_TRUE(std::is_sorted(keep.rbegin(), keep.rend()));
          EXPECT_EQ(keep.front(), std::lround(line.front()));
          EXPECT_EQ(keep.back(), std::lround(line.back()));
          for (int layer = 0; layer < layers; ++layer) {
            const double up = keep[layer] - line[layer];
            EXPECT_LT(std::abs(up), 1.0 - 1e-6) << "layer " << layer;
            if (std::abs(up) < 1e-6) continue;
            EXPECT_EQ(up > 0, 2 * layer < layers - 1) << "layer " << layer;
          }
          EXPECT_EQ(plan.LargestBudget(), keep.front());
          EXPECT_LE(plan.LargestBudget(), n);
          EXPECT_GE(plan.LayerBudget(layers - 1), 8);
          EXPECT_TRUE(plan.Compresses());
          EXPECT_FALSE(IsReported(plan)) << "the host knows what each layer keeps";
        }
      }
    }
  }
}

// A fifth of 253 tokens in 30 layers: pyramids of different beta differ although a step is less
// than two entries.
TEST(CachePlan, ASmallPyramidIsAsSteepAsItsBeta) {
  CacheSpec spec = Spec("pyramidkv");
  spec.cache_ratio = 0.2;
  spec.min_cache_tokens = 0;
  const auto ends = [&](const char* beta) {
    spec.params = {{"beta", beta}};
    const CachePlan plan = *PlanCache(spec, {253, 30, 3});
    return std::pair(plan.layer_budgets.front() - plan.rule.recent,
                     plan.layer_budgets.back() - plan.rule.recent);
  };
  EXPECT_EQ(ends("20"), std::pair(51, 1));
  EXPECT_EQ(ends("3"), std::pair(44, 8));
  EXPECT_EQ(ends("1000"), std::pair(52, 0));
}

TEST(CachePlan, PyramidsEdges) {
  CacheSpec spec = Spec("pyramidkv");
  spec.max_cache_tokens = 40;
  EXPECT_THAT(PlanCache(spec, {40, 6, 2})->layer_budgets, IsEmpty()) << "nothing leaves";
  EXPECT_FALSE(PlanCache(spec, {40, 6, 2})->Compresses());
  EXPECT_THAT(PlanCache(spec, {500, 1, 2})->layer_budgets, ElementsAre(40));
  spec.params = {{"beta", "1"}};
  EXPECT_THAT(PlanCache(spec, {500, 6, 2})->layer_budgets, ElementsAre(40, 40, 40, 40, 40, 40));
  spec.protected_window_size = 40;
  EXPECT_THAT(PlanCache(spec, {500, 3, 2})->layer_budgets, ElementsAre(40, 40, 40));
  // A prompt slightly longer than the budget: the first layer keeps all.
  spec = Spec("pyramidkv");
  spec.max_cache_tokens = 40;
  spec.protected_window_size = 10;
  const CachePlan plan = *PlanCache(spec, {41, 2, 2});
  EXPECT_EQ(plan.retention->InitialSpan(plan, 0), (HeadSpan{.dropped = 0}));
  EXPECT_EQ(plan.retention->InitialSpan(plan, 1), (HeadSpan{.dropped = 2}));
  EXPECT_EQ(plan.EntriesAfter(45), 45) << "of the fullest layer";
  for (const char* bad : {"0", "1001", "-3", "2.5", ""}) {
    spec.params = {{"beta", bad}};
    EXPECT_EQ(ErrorOf(spec),
              std::string("cache.params.beta: '") + bad + "' is not a whole number in [1, 1000]");
  }
}

// The plan of `ada-x` equals the plan of `x` with budget_scope layer.
TEST(CachePlan, AdaIsItsPolicyWithALayersBudget) {
  for (const char* policy : {"snapkv", "pyramidkv", "h2o"}) {
    CacheSpec plain = Spec(policy), ada = Spec(std::string("ada-") + policy);
    if (ada.policy == "ada-pyramidkv") ada.policy = "ada-pyramid";
    SCOPED_TRACE(ada.policy);
    plain.max_cache_tokens = ada.max_cache_tokens = 50;
    plain.params = {{"budget_scope", "layer"}};
    const PromptShape prompt = {.tokens = 300, .num_layers = 4, .num_kv_heads = 3};
    const CachePlan a = *PlanCache(plain, prompt), b = *PlanCache(ada, prompt);
    EXPECT_EQ(b.share.scope, BudgetScope::kLayer);
    EXPECT_EQ(b.share.floor_ppm, 200000);
    EXPECT_TRUE(IsReported(b));
    EXPECT_FALSE(HasCandidates(b));
    EXPECT_EQ(a.share.scope, b.share.scope);
    EXPECT_EQ(a.layer_budgets, b.layer_budgets);
    EXPECT_EQ(MaxKeep(a), MaxKeep(b));
    EXPECT_EQ(a.cap, b.cap);
    EXPECT_EQ(a.rule.recent, b.rule.recent);
    EXPECT_EQ(a.scorer->Name(), b.scorer->Name());
    ada.params = {{"budget_scope", "head"}};
    EXPECT_FALSE(IsReported(*PlanCache(ada, prompt)));
    EXPECT_FALSE(IsReported(*PlanCache(plain, {50, 4, 3}))) << "nothing is to be shared";
    const std::vector<PolicyInfo>& infos = ListPolicies();
    const auto info = std::find_if(infos.begin(), infos.end(), [&](const PolicyInfo& candidate) {
      return candidate.name == ada.policy;
    });
    ASSERT_NE(info, infos.end());
    EXPECT_THAT(info->parameters, Contains(AllOf(Field(&PolicyParameter::name, "budget_scope"),
                                                 Field(&PolicyParameter::default_value, "layer"))));
  }
}

// The most that a head can keep: its floor and the shares of all other heads.
TEST(CachePlan, TheWidestHeadOfALayerHasAllTheBest) {
  CacheSpec spec = Spec("ada-snapkv");
  spec.max_cache_tokens = 40;
  spec.protected_window_size = 10;
  const auto widest = [&](int tokens, int kv_heads) {
    return MaxKeep(*PlanCache(spec, {tokens, 2, kv_heads}));
  };
  EXPECT_EQ(widest(1000, 4), 10 + 6 + 24 * 4);
  EXPECT_EQ(widest(1000, 1), 40);
  EXPECT_EQ(widest(100, 4), 100);
  EXPECT_EQ(widest(30, 4), 30);
  spec.params = {{"head_floor", "1"}};
  EXPECT_EQ(widest(1000, 4), 40);
  spec.params = {{"head_floor", "0"}};
  EXPECT_EQ(widest(1000, 4), 10 + 30 * 4);
  spec.params = {{"head_floor", "0.35"}};
  EXPECT_EQ(widest(1000, 4), 10 + 89) << "10.5 + 78 = 88.5, rounded up";
  EXPECT_EQ(PlanCache(spec, {1000, 2, 4})->EntriesAfter(1100), 10 + 89 + 100);
}

TEST(CachePlan, ABudgetOfTheModelHoldsCandidates) {
  CacheSpec spec = Spec("h2o");
  spec.max_cache_tokens = 40;
  spec.params = {{"budget_scope", "model"}};
  CachePlan plan = *PlanCache(spec, {1000, 6, 4});
  EXPECT_EQ(plan.share.scope, BudgetScope::kModel);
  EXPECT_TRUE(HasCandidates(plan));
  EXPECT_EQ(MaxKeep(plan), 800);
  EXPECT_EQ(MaxKeep(plan), 800);
  EXPECT_EQ(plan.Growth(), 0);
  EXPECT_EQ(plan.EntriesAfter(5000), 800) << "every head stays at what it was given";
  EXPECT_EQ(plan.Keeping(7), (HeadSpan{.dropped = 993, .cap = 7}));
  EXPECT_EQ(MaxKeep(*PlanCache(spec, {100, 6, 4})), 100);
  plan = *PlanCache(spec, {40, 6, 4});
  EXPECT_FALSE(HasCandidates(plan));
  EXPECT_EQ(MaxKeep(plan), 40);
  spec.params["candidates"] = "1.01";
  EXPECT_EQ(MaxKeep(*PlanCache(spec, {1000, 6, 4})), 41);
  spec.params["candidates"] = "1000";
  spec.max_cache_tokens = std::numeric_limits<int32_t>::max() - 1;
  EXPECT_EQ(MaxKeep(*PlanCache(spec, {1000, 6, 4})), 1000) << "no overflow";
}

int32_t PagesOfHeads(const std::vector<int32_t>& entries, int block) {
  int32_t pages = 0;
  for (const int32_t held : entries) pages += (held + block - 1) / block;
  return pages;
}

// Compacts the heads of the layers so far to the entries that may still be in the final budget: the
// formula of kernels/ops/share_budget.h over the scores known by then.
void CompactDuringPrefill(const CachePlan& plan, const std::vector<std::vector<int>>& scores,
                          std::vector<int32_t>* held) {
  const int base = plan.budget - plan.Protected();
  std::vector<std::pair<int, size_t>> there;  // (score, head), all scores differ
  for (size_t head = 0; head < held->size(); ++head) {
    for (int i = 0; i < (*held)[head] - plan.Protected(); ++i)
      there.emplace_back(scores[head][i], head);
  }
  std::sort(there.rbegin(), there.rend());
  ASSERT_GE(there.size(), scores.size() * base) << "there are fewer than are counted";
  there.resize(scores.size() * base);
  std::vector<int64_t> best(held->size(), 0);
  for (const auto& entry : there) ++best[entry.second];
  for (size_t head = 0; head < held->size(); ++head) {
    const int64_t millionths = int64_t{plan.share.floor_ppm} * base +
                               (1000000 - int64_t{plan.share.floor_ppm}) * best[head];
    const int64_t keep = std::max(best[head], (millionths + 999999) / 1000000) + plan.Protected();
    (*held)[head] = static_cast<int32_t>(std::min<int64_t>((*held)[head], keep));
  }
}

// Layers with random scores, some far better than others: during prefill the heads never hold more
// pages than the schedule's bound.
TEST(CachePlan, NoPromptHoldsMoreThanItsUnassignedPages) {
  constexpr uint64_t kSeed = 59;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  int cuts = 0, close = 0;
  for (int round = 0; round < 300; ++round) {
    CachePlan plan;
    const int kv_heads = static_cast<int>(1 + random() % 4), block = 1 << random() % 5;
    plan.prompt = {.tokens = static_cast<int64_t>(8 + random() % 150),
                   .num_layers = static_cast<int>(1 + random() % 20),
                   .num_kv_heads = kv_heads};
    plan.rule.recent = static_cast<int32_t>(random() % 3);
    plan.budget = plan.rule.recent + 1 + static_cast<int32_t>(random() % (plan.prompt.tokens / 3));
    plan.share = {.scope = BudgetScope::kModel,
                  .floor_ppm = static_cast<int32_t>(random() % 2 == 0 ? 0 : random() % 1000001)};
    plan.ShareBudgets(static_cast<int32_t>(plan.budget * (1 + random() % 6)));
    const int32_t candidates = MaxKeep(plan);
    std::vector<std::vector<int>> scores(plan.prompt.num_layers * kv_heads);
    for (std::vector<int>& of_head : scores) {
      const int better = static_cast<int>(random() % 3) * 100'000;
      for (int i = 0; i < candidates; ++i)
        of_head.push_back((better + static_cast<int>(random() % 100'000)) * 64 +
                          static_cast<int>(random() % 64));
      std::sort(of_head.rbegin(), of_head.rend());
    }
    std::vector<int32_t> held;
    int32_t most = 0;
    for (int layers = 1; layers <= plan.prompt.num_layers; ++layers) {
      held.resize(layers * kv_heads, candidates);
      most = std::max(most, PagesOfHeads(held, block));
      if (layers == plan.prompt.num_layers) break;
      const std::optional<PageCompaction> cut = plan.retention->PromptCompaction(plan, layers);
      if (!cut.has_value()) continue;
      EXPECT_EQ(cut->first_layers, layers);
      CompactDuringPrefill(plan, scores, &held);
      ++cuts;
    }
    const int64_t reserved = plan.retention->UnassignedPages(plan, block);
    EXPECT_LE(most, reserved) << "round " << round;
    EXPECT_LE(reserved,
              int64_t{PagesOfHeads(std::vector<int32_t>(scores.size(), candidates), block)});
    EXPECT_EQ(plan.retention->PromptCompaction(plan, plan.prompt.num_layers)->first_layers, 0);
    close += most * 4 >= reserved * 3 ? 1 : 0;
  }
  EXPECT_GT(cuts, 300);
  EXPECT_GT(close, 200) << "the bound is far from what is held";
}

TEST(CachePlan, APromptUnderAModelsBudgetTakesAThirdOfTheFullCache) {
  CacheSpec spec = Spec("echo");
  spec.cache_ratio = 0.2;
  const CachePlan plan = *PlanCache(spec, {.tokens = 1024, .num_layers = 16, .num_kv_heads = 8});
  constexpr int64_t kWhole = 16 * 8 * 1024 / 16;
  EXPECT_LT(plan.retention->PeakPages(plan, 1024, 16), kWhole * 2 / 5);
  EXPECT_GT(plan.retention->PeakPages(plan, 1024, 16), kWhole / 4);
  spec.min_retained_mass = 0.9;  // the needed entries are known only at the end
  const CachePlan guarded = *PlanCache(spec, {.tokens = 1024, .num_layers = 16, .num_kv_heads = 8});
  EXPECT_GE(guarded.retention->PeakPages(guarded, 1024, 16), kWhole);
}

TEST(CachePlan, SharingErrorsNameTheParameter) {
  CacheSpec spec = Spec("h2o");
  spec.max_cache_tokens = 40;
  const auto error_with = [&](const std::string& name, const std::string& value) {
    spec.params = {{name, value}};
    return ErrorOf(spec);
  };
  EXPECT_EQ(error_with("budget_scope", "all"),
            "cache.params.budget_scope: 'all' is none of head, layer, model");
  EXPECT_EQ(error_with("group_reduce", "sum"),
            "cache.params.group_reduce: 'sum' is none of mean, max, sum_of_squares");
  for (const char* bad : {"-0.1", "1.1", "nan", "", "a fifth"}) {
    EXPECT_EQ(error_with("head_floor", bad),
              std::string("cache.params.head_floor: '") + bad + "' is not a number in [0, 1]");
  }
  for (const char* bad : {"0.99", "1001", "inf"}) {
    EXPECT_EQ(error_with("candidates", bad),
              std::string("cache.params.candidates: '") + bad + "' is not a number in [1, 1000]");
  }
  for (const char* policy : {"pyramidkv", "ada-pyramid"}) {
    spec.policy = policy;
    EXPECT_EQ(error_with("budget_scope", "model"),
              "cache.params.budget_scope: 'model' is none of head, layer")
        << "the layers' budgets are fixed";
  }
  for (const char* policy : {"local", "streaming", "subgen", "subgen-kcenter"}) {
    spec.policy = policy;
    EXPECT_THAT(
        error_with("budget_scope", "layer"),
        StartsWith("cache.params: 'budget_scope' is no parameter of policy " + spec.policy));
  }
}

// A head without any selected entry would have no entry to attend to.
TEST(CachePlan, HeadsThatShareNeedAProtectedEntry) {
  for (const char* scope : {"layer", "model"}) {
    CacheSpec spec = Spec("h2o");
    spec.max_cache_tokens = 40;
    spec.protected_window_size = 0;
    EXPECT_TRUE(PlanCache(spec, {100}).ok());
    spec.params = {{"budget_scope", scope}};
    EXPECT_THAT(ErrorOf(spec), AllOf(StartsWith("cache.protected_window_size: 0"),
                                     HasSubstr("at least 1, or sink_tokens at least 1")));
    spec.sink_tokens = 1;
    EXPECT_TRUE(PlanCache(spec, {100}).ok());
    spec.sink_tokens.reset();
    spec.max_cache_tokens = 1;  // half of 1 rounds to 0
    spec.protected_window_size.reset();
    EXPECT_THAT(ErrorOf(spec), StartsWith("cache.protected_window_size: 0"));
  }
}

TEST(CachePlan, ReconstructsDefaults) {
  CacheSpec spec = Spec("reconstruct");
  spec.max_cache_tokens = 20;
  CachePlan plan = *PlanCache(spec, {500, 4, 2});
  EXPECT_EQ(plan.scorer->Name(), "probe");
  EXPECT_EQ(ProbeOf(plan).sum, 1.0f);
  EXPECT_EQ(ProbeOf(plan).max, 5.0f);
  EXPECT_EQ(plan.share.scope, BudgetScope::kModel);
  EXPECT_EQ(MaxKeep(plan), 400);
  EXPECT_EQ(plan.rule.sinks, 0);
  EXPECT_EQ(plan.rule.recent, 5) << "a quarter of the budget";
  EXPECT_EQ(plan.cap, kNoCap);
  EXPECT_FALSE(plan.rule.scored);
  spec.max_cache_tokens = 200;
  EXPECT_EQ(PlanCache(spec, {500, 4, 2})->rule.recent, 8);
  spec.max_cache_tokens = 1;
  EXPECT_EQ(PlanCache(spec, {500, 4, 2})->rule.recent, 1);
  spec.max_cache_tokens = 20;
  spec.params = {{"sum_weight", "0"}, {"max_weight", "1e6"}, {"budget_scope", "head"}};
  plan = *PlanCache(spec, {500, 4, 2});
  EXPECT_EQ(ProbeOf(plan).max, 1e6f);
  EXPECT_FALSE(IsReported(plan));
  spec.params = {{"sum_weight", "0"}, {"max_weight", "0"}};
  EXPECT_EQ(
      ErrorOf(spec),
      "cache.params.max_weight: 0, and sum_weight is 0 too, ranks nothing; one of them above 0");
  for (const char* name : {"sum_weight", "max_weight"}) {
    for (const char* bad : {"-1", "1000001", "nan", ""}) {
      spec.params = {{name, bad}};
      EXPECT_EQ(ErrorOf(spec), std::string("cache.params.") + name + ": '" + bad +
                                   "' is not a number in [0, 1000000]");
    }
  }
  spec.params.clear();
  spec.protected_window_size = 0;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.protected_window_size: 0"));
  spec.protected_window_size = 21;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.max_cache_tokens: the budget of 20"));
}

TEST(CachePlan, EchoPlansWithoutASecondReading) {
  CacheSpec spec = Spec("echo");
  spec.max_cache_tokens = 20;
  const CachePlan plan = *PlanCache(spec, {500, 4, 2});
  EXPECT_EQ(plan.scorer->Name(), "echo");
  EXPECT_FALSE(plan.ReadsProbe());
  spec.policy = "reconstruct";
  const CachePlan other = *PlanCache(spec, {500, 4, 2});
  EXPECT_TRUE(other.ReadsProbe());
  EXPECT_EQ(ProbeOf(plan).sum, ProbeOf(other).sum);
  EXPECT_EQ(ProbeOf(plan).max, 10.0f);
  EXPECT_TRUE(ProbeOf(plan).value_norms);
  EXPECT_TRUE(ProbeOf(other).value_norms);
  EXPECT_EQ(plan.share.scope, BudgetScope::kModel);
  EXPECT_EQ(MaxKeep(plan), MaxKeep(other));
  EXPECT_EQ(plan.Protected(), other.Protected());
  EXPECT_EQ(plan.share.floor_ppm, 0) << "no head has a part for certain";
  EXPECT_EQ(other.share.floor_ppm, 0);
  spec.params = {{"echo", "true"}};
  const CachePlan both = *PlanCache(spec, {500, 4, 2});
  EXPECT_EQ(both.scorer->Name(), "probe+echo");
  EXPECT_TRUE(both.ReadsProbe());
  EXPECT_EQ(PlanCache(spec, {20, 4, 2})->scorer->Name(), "probe") << "nothing leaves";
  spec.params = {{"echo", "maybe"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.echo: 'maybe'"));
  spec.params = {{"value_norms", "maybe"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.value_norms: 'maybe'"));
}

TEST(CachePlan, AutoReadsTwiceIfAQuestionFollows) {
  CacheSpec spec;
  spec.policy = "auto";
  spec.max_cache_tokens = 50;
  PromptShape prompt = {.tokens = 1000, .num_layers = 4, .num_kv_heads = 2, .question_tokens = 5};
  CachePlan plan = *PlanCache(spec, prompt);
  EXPECT_EQ(plan.scorer->Name(), "echo");
  EXPECT_EQ(Reported(ReportOf(plan), "policy"), "echo");
  EXPECT_EQ(Reported(ReportOf(plan), "why"),
            "all heads share 50 entries a head of 1000; its question comes later, and there is no "
            "room to read it twice");
  prompt.fits_two_passes = true;
  plan = *PlanCache(spec, prompt);
  EXPECT_EQ(plan.scorer->Name(), "probe+echo");
  EXPECT_TRUE(plan.ReadsProbe());
  EXPECT_EQ(ProbeOf(plan).max, 10.0f);
  EXPECT_EQ(plan.share.floor_ppm, 200000);
  EXPECT_EQ(Reported(ReportOf(plan), "policy"), "reconstruct");
  EXPECT_EQ(Reported(ReportOf(plan), "why"),
            "all heads share 50 entries a head of 1000; its question comes later, so it is read "
            "twice");
  prompt.question_tokens = 0;
  EXPECT_EQ(PlanCache(spec, prompt)->scorer->Name(), "echo");
  prompt.question_tokens = 5;
  spec.max_cache_tokens = 1000;
  EXPECT_EQ(Reported(ReportOf(*PlanCache(spec, prompt)), "policy"), "full");
  EXPECT_FALSE(PlanCache(spec, prompt)->ReadsProbe());
}

// Few heads beside layers with a window: each is needed and has a budget of its own.
TEST(CachePlan, FewHeadsBesideWindowsDoNotShare) {
  EngineLimits limits;
  limits.num_layers = 18;
  limits.num_kv_heads = 1;
  limits.SetWindow(15, 512);
  const PromptShape gemma = limits.ShapeOf(1000);
  EXPECT_EQ(gemma.num_layers, 3);
  EXPECT_EQ(gemma.num_fixed_layers, 15);
  CacheSpec spec;
  spec.max_cache_tokens = 100;
  for (const char* policy : {"echo", "reconstruct", "learned", "auto"}) {
    spec.policy = policy;
    PromptShape prompt = gemma;
    prompt.predicts_scores = spec.policy == "learned";
    EXPECT_EQ(PlanCache(spec, prompt)->share.scope, BudgetScope::kHead) << policy;
    EXPECT_EQ(PlanCache(spec, prompt)->EntriesAfter(1000), 100) << policy;
    prompt.num_kv_heads = 3;
    EXPECT_EQ(PlanCache(spec, prompt)->share.scope, BudgetScope::kModel) << policy << ", 9 heads";
    prompt = {.tokens = 1000, .num_layers = 3, .predicts_scores = prompt.predicts_scores};
    EXPECT_EQ(PlanCache(spec, prompt)->share.scope, BudgetScope::kModel) << policy << ", no window";
  }
  spec.policy = "auto";
  PromptShape asked_later = gemma;
  asked_later.question_later = asked_later.fits_two_passes = true;
  for (const PromptShape& prompt : {gemma, asked_later}) {
    const CachePlan plan = *PlanCache(spec, prompt);
    EXPECT_EQ(plan.scorer->Name(), "echo");
    EXPECT_EQ(Reported(ReportOf(plan), "why"),
              "each of the few heads without a window keeps 100 entries of 1000");
  }
  spec.policy = "echo";
  spec.params = {{"budget_scope", "model"}};
  EXPECT_EQ(PlanCache(spec, gemma)->share.scope, BudgetScope::kModel) << "as asked";
  spec.params = {{"budget_scope", "layer"}};
  EXPECT_EQ(PlanCache(spec, gemma)->share.scope, BudgetScope::kLayer) << "as asked";
}

TEST(CachePlan, AutoTakesABudgetOrAQualityOrNeither) {
  CacheSpec spec;
  spec.policy = "auto";
  spec.max_cache_tokens = 50;
  CachePlan plan = *PlanCache(spec, {1000, 4, 2});
  EXPECT_EQ(plan.budget, 50);
  EXPECT_EQ(plan.scorer->Name(), "echo");
  EXPECT_EQ(plan.share.scope, BudgetScope::kModel);
  EXPECT_FALSE((plan.resolve_at == ResolveAt::kAdmission));
  EXPECT_EQ(Reported(ReportOf(plan), "policy"), "echo");
  EXPECT_EQ(Reported(ReportOf(plan), "why"), "all heads share 50 entries a head of 1000");
  plan = *PlanCache(spec, {50, 4, 2});
  EXPECT_FALSE(plan.Compresses());
  EXPECT_EQ(Reported(ReportOf(plan), "policy"), "full");
  EXPECT_EQ(plan.scorer->Name(), "none") << "nothing is asked where nothing leaves";
  spec.params = {{"decode_cap", "60"}};
  EXPECT_EQ(PlanCache(spec, {50, 4, 2})->scorer->Name(), "echo");
  spec.params.clear();
  EXPECT_EQ(Reported(ReportOf(plan), "why"),
            "the prompt has 50 tokens, the budget is 50 entries a head");

  spec.max_cache_tokens.reset();
  plan = *PlanCache(spec, {1000, 4, 2});
  EXPECT_EQ(plan.budget, 200) << "a fifth";
  EXPECT_TRUE((plan.resolve_at == ResolveAt::kAdmission));
  spec.min_retained_mass = 0.9;
  plan = *PlanCache(spec, {1000, 4, 2});
  EXPECT_EQ(plan.budget, kDefaultMinCacheTokens);
  EXPECT_EQ(PlanCache(spec, {2000, 4, 2})->budget, 200) << "a tenth";
  EXPECT_FALSE((plan.resolve_at == ResolveAt::kAdmission));
  EXPECT_TRUE(plan.scorer->MeasuresMassByEcho());
  EXPECT_EQ(plan.MassQueries(), 1000);
  EXPECT_EQ(MaxForMass(plan), kNoCap);
  EXPECT_EQ(
      Reported(ReportOf(plan), "why"),
      "all heads share 128 entries a head of 1000, and each keeps more until it retains 0.9 of "
      "the echo's attention");
  spec.max_cache_tokens = 300;  // both: min_retained_mass means the same as in any policy
  plan = *PlanCache(spec, {1000, 4, 2});
  EXPECT_EQ(plan.budget, 300);
  EXPECT_EQ(MaxForMass(plan), 300);

  spec = CacheSpec();
  spec.policy = "auto";
  spec.params = {{"max_weight", "3"}};
  EXPECT_THAT(ErrorOf(spec),
              StartsWith("cache.params: 'max_weight' is no parameter of policy auto"));
  spec.params.clear();
  spec.min_retained_mass = 1.5;
  EXPECT_EQ(ErrorOf(spec), "cache.min_retained_mass: 1.5 is outside (0, 1]");
}

TEST(CachePlan, DecodeCapsReachFromTheBudgetUp) {
  for (const char* policy : {"snapkv", "pyramidkv", "ada-snapkv", "ada-pyramid", "reconstruct"}) {
    CacheSpec spec = Spec(policy);
    SCOPED_TRACE(policy);
    spec.max_cache_tokens = 40;
    const PromptShape prompt = {.tokens = 300, .num_layers = 3, .num_kv_heads = 2};
    for (const char* bad : {"39", "1073741825", "40.5", "-1"}) {
      spec.params = {{"decode_cap", bad}};
      EXPECT_EQ(ErrorOf(spec), std::string("cache.params.decode_cap: '") + bad +
                                   "' is not a whole number in [40, 1073741824]");
    }
    spec.params = {{"decode_cap", "40"}};
    CachePlan plan = *PlanCache(spec, prompt);
    EXPECT_EQ(plan.Growth(), 0);
    EXPECT_TRUE(plan.rule.scored);
    EXPECT_EQ(plan.Keeping(13), (HeadSpan{.dropped = 287, .cap = 13}));
    spec.params = {{"decode_cap", "55"}};
    plan = *PlanCache(spec, prompt);
    EXPECT_EQ(plan.Keeping(13), (HeadSpan{.dropped = 287, .cap = 28}));
    EXPECT_EQ(plan.Keeping(13).EntriesAfter(310), 23);
    EXPECT_EQ(plan.Keeping(13).EntriesAfter(1000), 28);
    spec.params = {{"decode_cap", "1073741824"}};
    EXPECT_TRUE(PlanCache(spec, prompt).ok());
  }
}

TEST(CachePlan, RetainedMassMayWidenAnyHead) {
  CacheSpec spec = Spec("snapkv");
  spec.max_cache_tokens = 40;
  spec.min_retained_mass = 0.9;
  CachePlan plan = *PlanCache(spec, {300, 3, 2});
  EXPECT_FLOAT_EQ(MinRetainedMass(plan), 0.9f);
  EXPECT_TRUE(IsReported(plan));
  EXPECT_TRUE(HasCandidates(plan));
  EXPECT_EQ(MaxKeep(plan), 300);
  EXPECT_EQ(MaxKeep(plan), 300);
  EXPECT_EQ(MaxForMass(plan), 40);
  EXPECT_EQ(plan.EntriesAfter(310), 310);
  spec.max_cache_tokens.reset();
  spec.cache_ratio = 0.5;
  EXPECT_EQ(MaxForMass(*PlanCache(spec, {300, 3, 2})), kNoCap);
  spec.max_cache_tokens = 140;
  EXPECT_EQ(MaxForMass(*PlanCache(spec, {300, 3, 2})), 140);
  EXPECT_FALSE(IsReported(*PlanCache(spec, {100, 3, 2}))) << "nothing leaves";
  for (const double bad : {0.0, -0.5, 1.0001, std::nan("")}) {
    spec.min_retained_mass = bad;
    EXPECT_THAT(ErrorOf(spec),
                AllOf(StartsWith("cache.min_retained_mass: "), HasSubstr("is outside (0, 1]")));
    CacheSpec full = Spec("full");
    full.min_retained_mass = bad;
    EXPECT_THAT(ErrorOf(full), StartsWith("cache.min_retained_mass: "));
  }
  CacheSpec full = Spec("full");
  full.min_retained_mass = 1.0;
  EXPECT_FALSE(IsReported(*PlanCache(full, {300})));
}

TEST(CachePlan, RetainedMassIsRefusedWhereItIsNotKnown) {
  CacheSpec spec = Spec("subgen");
  spec.max_cache_tokens = 40;
  spec.min_retained_mass = 0.5;
  EXPECT_EQ(ErrorOf(spec),
            "cache.min_retained_mass: 0.5 given, but policy subgen keeps samples, whose mass is "
            "not known");
  spec.policy = "co2";
  EXPECT_EQ(ErrorOf(spec),
            "cache.min_retained_mass: 0.5 given, but policy co2 does not compress the prompt when "
            "it has been read");
  spec.params = {{"measurement_steps", "0"}};
  EXPECT_TRUE(PlanCache(spec, {300}).ok());
  for (const char* policy : {"streaming", "h2o"}) {
    spec.policy = policy;
    spec.params = {{"rolling", "true"}};
    EXPECT_EQ(ErrorOf(spec), "cache.params.rolling: true does not go with min_retained_mass");
  }
  spec.min_retained_mass.reset();
  spec.policy = "h2o";
  spec.params = {{"rolling", "true"}, {"budget_scope", "model"}};
  EXPECT_EQ(ErrorOf(spec), "cache.params.rolling: true does not go with a budget_scope of model");
  spec.params["budget_scope"] = "layer";
  EXPECT_TRUE(PlanCache(spec, {300}).ok());
}

// Simulates a head of each layer token by token, with the compactions that the schedule announces;
// the lengths that the schedule predicts must agree. REQUIRES: heads do not differ.
void ExpectLengthsAgree(const CachePlan& plan) {
  constexpr int kBlock = 16;
  struct Head {
    int32_t length, cap;
  };
  std::vector<Head> heads;
  for (int layer = 0; layer < plan.prompt.num_layers; ++layer) {
    const HeadSpan span = plan.retention->InitialSpan(plan, layer);
    heads.push_back({span.EntriesAfter(plan.prompt.tokens), span.cap});
  }
  int32_t most = 0;
  for (int64_t seen = plan.prompt.tokens; seen <= plan.prompt.tokens + 300; ++seen) {
    int32_t fullest = 0;
    int64_t pages = 0;
    for (const Head& head : heads) {
      fullest = std::max(fullest, head.length);
      pages += PagesOf(head.length, kBlock) * plan.prompt.num_kv_heads;
    }
    most = std::max(most, fullest);
    ASSERT_EQ(plan.EntriesAfter(seen), fullest) << "after " << seen;
    ASSERT_GE(plan.PeakEntries(seen), most) << "after " << seen;
    ASSERT_GE(plan.retention->PeakPages(plan, seen, kBlock), pages) << "after " << seen;
    const bool cuts = plan.CompactsAfter(seen);
    const PageCompaction cut =
        cuts ? plan.retention->CompactionAfter(plan, seen) : PageCompaction();
    for (size_t layer = 0; layer < heads.size(); ++layer) {
      Head& head = heads[layer];
      if (cuts) {
        ASSERT_LE(cut.keep[layer], head.length) << "after " << seen;
        ASSERT_LE(head.length, cut.max_length) << "after " << seen;
        head.length = cut.keep[layer];
      }
      if (cuts && cut.growth >= 0) head.cap = head.length + cut.growth;
      if (head.length < head.cap) ++head.length;
      if (cut.then.has_value()) {
        ASSERT_LE(head.length, cut.then->PeakEntries(seen + 1)) << "after " << seen;
      }
    }
  }
}

TEST(CachePlan, LearnedNeedsAPredictor) {
  CacheSpec spec = Spec("learned");
  spec.max_cache_tokens = 100;
  EXPECT_THAT(ErrorOf(spec, 300),
              AllOf(StartsWith("cache.cache_policy: learned needs a score predictor"),
                    HasSubstr("hydrant-eval fit"), HasSubstr("--score-predictor")));
  PromptShape prompt = {300, 4, 2};
  prompt.predicts_scores = true;
  const CachePlan plan = *PlanCache(spec, prompt);
  EXPECT_EQ(plan.scorer->Name(), "predicted");
  EXPECT_TRUE(plan.rule.predicted);
  EXPECT_FALSE(plan.ReadsProbe());
  EXPECT_TRUE(plan.AppendsRuns());
  spec.params = {{"echo", "true"}};
  EXPECT_EQ(PlanCache(spec, prompt)->scorer->Name(), "predicted+echo");
  // With a cap H2O's rule goes on from the prompt's scores.
  spec.params = {{"decode_cap", "120"}};
  const CachePlan capped = *PlanCache(spec, prompt);
  EXPECT_EQ(capped.scorer->Name(), "predicted");
  EXPECT_FALSE(capped.rule.predicted);
  spec.params = {{"echo", "both"}};
  EXPECT_THAT(std::string(PlanCache(spec, prompt).status().message()),
              StartsWith("cache.params.echo: 'both'"));
}

// One reading suffices, also where a question comes later.
TEST(CachePlan, AutoTakesAPredictorInPlaceOfASecondReading) {
  CacheSpec spec = Spec("auto");
  spec.cache_ratio = 0.2;
  PromptShape prompt = {.tokens = 2000, .num_layers = 4, .num_kv_heads = 2, .question_later = true};
  prompt.fits_two_passes = true;
  EXPECT_EQ(PlanCache(spec, prompt)->scorer->Name(), "probe+echo");
  prompt.predicts_scores = true;
  const CachePlan plan = *PlanCache(spec, prompt);
  EXPECT_EQ(plan.scorer->Name(), "predicted+echo");
  EXPECT_TRUE(plan.rule.predicted);
  EXPECT_FALSE(plan.ReadsProbe());
  EXPECT_EQ(Reported(ReportOf(plan), "policy"), "learned");
  EXPECT_THAT(Reported(ReportOf(plan), "why"), HasSubstr("predicted scores"));
}

TEST(CachePlan, PoliciesThatCanShrink) {
  const std::set<std::string> always = {"local",   "streaming", "h2o",   "tova",
                                        "ada-h2o", "co2",       "random"},
                              where_asked = {"snapkv",      "pyramidkv",   "ada-snapkv",
                                             "ada-pyramid", "reconstruct", "echo",
                                             "learned",     "auto"};
  for (const PolicyInfo& info : ListPolicies()) {
    CacheSpec spec = Spec(info.name);
    if (info.name != "full") spec.max_cache_tokens = 100;
    if (info.name == "co2") spec.params["measurement_steps"] = "0";  // else a compaction is pending
    for (const bool asked : {false, true}) {
      spec.evictable = asked;
      const absl::StatusOr<CachePlan> plan = PlanCache(spec, ShapeFor(info.name, {300, 4, 2}));
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(CanShrink(*plan),
                always.contains(info.name) || (asked && where_asked.contains(info.name)))
          << info.name << (asked ? ", asked for" : "");
    }
    spec.min_retained_mass = 0.9;
    const absl::StatusOr<CachePlan> reserved = PlanCache(spec, ShapeFor(info.name, {300, 4, 2}));
    EXPECT_FALSE(reserved.ok() && CanShrink(*reserved)) << info.name;
  }
  // An open plan may shrink if the plans that it may become may shrink.
  CacheSpec spec = Spec("auto");
  spec.evictable = true;
  const CachePlan open = Resolve(*PlanCache(spec, {3000, 4, 2}), {});
  EXPECT_EQ(open.resolve_at, ResolveAt::kAdmission);
  EXPECT_TRUE(CanShrink(open));
  const CachePlan whole =
      Resolve(open, {.fits = [](const CachePlan&) { return true; }, .of_prompt = {}});
  EXPECT_FALSE(whole.Compresses());
  EXPECT_TRUE(CanShrink(whole));
  EXPECT_EQ(whole.scorer->Name(), "echo");
}

// Compared with the same computation in floating point.
TEST(CachePlan, ShrinkLeavesEveryHeadItsPart) {
  constexpr uint64_t kSeed = 23;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  const std::vector<std::string> policies = {"h2o",         "local",     "tova",
                                             "snapkv",      "pyramidkv", "ada-h2o",
                                             "ada-pyramid", "echo",      "reconstruct"};
  int lifted = 0;
  for (int round = 0; round < 2000; ++round) {
    CacheSpec spec = Spec(policies[random() % policies.size()]);
    spec.max_cache_tokens = 10 + random() % 60;
    spec.evictable = true;
    if (spec.policy == "h2o") spec.sink_tokens = random() % 3;
    const PromptShape prompt = {.tokens = static_cast<int64_t>(1 + random() % 200),
                                .num_layers = static_cast<int>(1 + random() % 5),
                                .num_kv_heads = static_cast<int>(1 + random() % 4)};
    CachePlan plan = *PlanCache(spec, prompt);
    const int32_t sinks = plan.rule.sinks;
    const int heads = prompt.num_layers * prompt.num_kv_heads;
    std::vector<int32_t> held(heads);
    for (int32_t& entries : held) entries = static_cast<int32_t>(sinks + 1 + random() % 100);
    int64_t tokens = 400;
    for (int cut = 0; cut < 3; ++cut, tokens += 10) {
      const double sum = std::accumulate(held.begin(), held.end(), 0.0);
      const auto average = static_cast<int32_t>(sum / heads);
      const int32_t mean = std::max(sinks + 2, average * 3 / 4);
      if (mean >= average) break;
      const CachePlan shrunk = Shrink(plan, tokens, held, mean);
      const int32_t fewest = *std::min_element(held.begin(), held.end());
      const double recent =
          std::floor(plan.cap == kNoCap ? std::max<double>(plan.rule.recent, mean / 4.0)
                                        : double{1} * plan.rule.recent * mean / plan.cap);
      EXPECT_EQ(shrunk.rule.recent, std::min<double>(recent, std::min(mean, fewest) - sinks));
      const PageCompaction how = shrunk.retention->CompactionAfter(shrunk, tokens);
      ASSERT_EQ(how.keep_of_heads.size(), held.size());
      int64_t pages = 0;
      for (int head = 0; head < heads; ++head) {
        const double part = std::floor(held[head] * (double{1} * mean * heads) / sum);
        const int32_t least = sinks + std::max(1, shrunk.rule.recent),
                      keep = how.keep_of_heads[head];
        ASSERT_EQ(keep, std::max<double>(part, least));
        ASSERT_LE(keep, held[head]);
        pages += PagesOf(keep, 16);
        lifted += keep > part ? 1 : 0;
      }
      EXPECT_EQ(how.max_length, *std::max_element(held.begin(), held.end()));
      EXPECT_EQ(how.growth, 0);
      held = how.keep_of_heads;
      EXPECT_EQ(shrunk.EntriesAfter(tokens), *std::max_element(held.begin(), held.end()));
      EXPECT_EQ(shrunk.PeakEntries(tokens + 99), shrunk.EntriesAfter(tokens));
      EXPECT_EQ(shrunk.MeanEntriesAfter(tokens + 99), mean);
      EXPECT_EQ(shrunk.retention->PeakPages(shrunk, tokens + 99, 16), pages);
      EXPECT_TRUE(shrunk.CompactsAfter(tokens) && !shrunk.CompactsAfter(tokens + 1));
      EXPECT_TRUE(CanShrink(shrunk) && !shrunk.AppendsRuns() && !shrunk.Compresses());
      plan = shrunk;
    }
  }
  EXPECT_GT(lifted, 100);
}

// Invariants of every plan, for all policies: the largest length is the length of some head; spans
// agree with the entries that the layers keep; no head keeps more than MaxKeep.
TEST(CachePlan, SpansAndBoundsAgree) {
  constexpr uint64_t kSeed = 17;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  int ragged = 0, deferred = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<PolicyInfo>& infos = ListPolicies();
    CacheSpec spec = Spec(infos[random() % infos.size()].name);
    if (spec.policy != "full") spec.max_cache_tokens = 5 + random() % 60;
    if (random() % 3 == 0) spec.min_retained_mass = 0.7;
    if (random() % 2 == 0 && spec.policy == "co2") {
      spec.params["budget_scope"] = "layer";
      if (random() % 2 == 0) spec.params["self_tuning"] = "true";
    }
    if (random() % 3 == 0 && spec.policy == "reconstruct") spec.params["decode_cap"] = "70";
    const PromptShape prompt = {.tokens = static_cast<int64_t>(1 + random() % 200),
                                .num_layers = static_cast<int>(1 + random() % 5),
                                .num_kv_heads = static_cast<int>(1 + random() % 4),
                                .predicts_scores = spec.policy == "learned"};
    const absl::StatusOr<CachePlan> made = PlanCache(spec, prompt);
    if (!made.ok()) {
      EXPECT_TRUE(spec.min_retained_mass.has_value()) << made.status();
      continue;
    }
    const CachePlan& plan = *made;
    SCOPED_TRACE(testing::Message()
                 << spec.policy << ", C " << plan.budget << ", " << prompt.tokens << " tokens");
    const auto n = static_cast<int32_t>(prompt.tokens);
    ragged += IsReported(plan) ? 1 : 0;
    deferred += HasCandidates(plan) ? 1 : 0;
    EXPECT_TRUE(IsReported(plan) || !HasCandidates(plan));
    EXPECT_TRUE(plan.Compresses() || !IsReported(plan));
    EXPECT_LE(MaxKeep(plan), n);
    if (plan.Compresses()) {
      EXPECT_LE(plan.Protected(), MaxKeep(plan));
    }
    if (!plan.retention->HeadsDiffer(plan)) ExpectLengthsAgree(plan);
    for (const int64_t tokens : {prompt.tokens, prompt.tokens + 1, prompt.tokens + 300}) {
      if (plan.retention->HeadsDiffer(plan)) {
        const int32_t widest = IsReported(plan) ? plan.Keeping(MaxKeep(plan)).EntriesAfter(tokens)
                               : tokens <= DelayedUntil(plan) ? static_cast<int32_t>(tokens)
                                                              : plan.MaxShare(DelayedUntil(plan));
        EXPECT_EQ(plan.EntriesAfter(tokens), widest);
      }
      EXPECT_GE(plan.PeakEntries(tokens), plan.EntriesAfter(tokens));
    }
    CachePlan uncapped = plan;
    uncapped.cap = kNoCap;
    for (int64_t seen = n; seen <= n + 300; ++seen) {
      EXPECT_TRUE(!uncapped.CompactsAfter(seen) || plan.retention->CompactsWithoutCaps()) << seen;
    }
    for (int layer = 0; layer < prompt.num_layers; ++layer) {
      EXPECT_LE(KeptOfPrompt(plan, layer), n);
      if (IsReported(plan)) continue;
      const int32_t budget = std::min(n, plan.LayerBudget(layer));
      EXPECT_EQ(KeptOfPrompt(plan, layer), plan.Compresses() ? budget : n);
      EXPECT_LE(budget, MaxKeep(plan));
    }
  }
  EXPECT_GT(ragged, 100);
  EXPECT_GT(deferred, 50);
}

// A plan as text, to compare two plans.
std::string Said(const CachePlan& plan) {
  std::string said = plan.policy == nullptr ? "" : plan.policy->Info().name;
  const DecodeRule& rule = plan.rule;
  for (const double number :
       {double(plan.budget), double(plan.cap), double(rule.scored), double(rule.weighted),
        double(rule.rolling), double(rule.sinks), double(rule.recent), double(rule.decay),
        double(rule.gain), double(plan.resolve_at), double(plan.share.scope),
        double(plan.share.floor_ppm), double(plan.Compresses())})
    said += " " + std::to_string(number);
  for (const int64_t more : {0, 1, 50, 500}) {
    said += " " + std::to_string(plan.EntriesAfter(plan.prompt.tokens + more)) + "/" +
            std::to_string(plan.PeakEntries(plan.prompt.tokens + more));
  }
  for (const auto& [name, value] : ReportOf(plan).values) {
    // Drops the text after ';', such as the number of waiting requests: a restored plan lacks it.
    if (const auto* text = std::get_if<std::string>(&value))
      said += " " + name + "=" + text->substr(0, text->find(';'));
  }
  return said;
}

TEST(CachePlan, ADecidedPlanIsRestored) {
  for (const PolicyInfo& policy : ListPolicies()) {
    for (const int64_t tokens : {3, 100, 1000}) {
      for (const int layers : {0, 3}) {
        for (const int room : {0, 1, 2, 3, 9}) {
          const PromptShape prompt =
              ShapeFor(policy.name, {.tokens = tokens, .num_layers = layers, .num_kv_heads = 2});
          CacheSpec spec = Spec(policy.name);
          if (policy.name != "full" && policy.name != "auto") spec.max_cache_tokens = 40;
          SCOPED_TRACE(testing::Message() << policy.name << " of " << tokens << " in " << layers
                                          << " layers, room " << room);
          const CachePlan open = *PlanCache(spec, prompt);
          int asked = 0;
          ResolveInputs inputs;
          inputs.fits = [&](const CachePlan&) { return asked++ == room; };
          const CachePlan plan = Resolve(open, inputs);
          ASSERT_EQ(plan.resolve_at, ResolveAt::kResolved);
          const auto restored = RestorePlan(spec, prompt, SaveDecision(plan));
          ASSERT_TRUE(restored.ok()) << restored.status();
          EXPECT_EQ(Said(*restored), Said(plan));
        }
      }
    }
  }
}

TEST(CachePlan, ImpossibleDecisionsAreRefused) {
  for (const PolicyInfo& policy : ListPolicies()) {
    for (const char* decision :
         {"1000", "-1", "x", " ", "1 ", " 1", "1 1000", "99999999999999 1"}) {
      for (const int64_t tokens : {100, 1000}) {
        CacheSpec spec = Spec(policy.name);
        if (policy.name != "full" && policy.name != "auto") spec.max_cache_tokens = 40;
        if (policy.name == "co2") spec.params["self_tuning"] = "true";
        const auto plan = RestorePlan(spec, ShapeFor(policy.name, {tokens, 3, 2}), decision);
        EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument)
            << policy.name << " '" << decision << "'";
      }
    }
  }
  EXPECT_FALSE(RestorePlan(Spec("auto"), {1000, 3, 2}, "").ok()) << "it was open";
  EXPECT_FALSE(RestorePlan(Spec("nope"), {1000, 3, 2}, "").ok());
}

TEST(CachePlan, WithoutABudgetItIsAFifth) {
  for (const PolicyInfo& policy : ListPolicies()) {
    if (policy.name == "full" || policy.name == "auto")
      continue;  // full has no budget; auto takes the free room
    CacheSpec spec = Spec(policy.name.c_str());
    const PromptShape prompt = ShapeFor(policy.name, {2000, 3, 2});
    const auto unset = PlanCache(spec, prompt);
    spec.cache_ratio = 0.2;
    const auto fifth = PlanCache(spec, prompt);
    ASSERT_TRUE(unset.ok()) << policy.name << ": " << unset.status();
    EXPECT_EQ(unset->budget, fifth->budget) << policy.name;
    EXPECT_EQ(unset->cap, fifth->cap) << policy.name;
    EXPECT_EQ(unset->layer_budgets, fifth->layer_budgets) << policy.name;
  }
  EXPECT_EQ(PlanCache(Spec("h2o"), {2000, 3, 2})->budget, 400);
  CacheSpec spec = Spec("h2o");
  spec.protected_window_size = 500;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.cache_ratio: the budget of"));
}

TEST(CachePlan, EveryErrorNamesItsFieldAndLimit) {
  EXPECT_THAT(ErrorOf(Spec("h3o")),
              AllOf(StartsWith("cache.cache_policy: 'h3o'"),
                    HasSubstr("full, local, streaming, h2o, scissorhands, tova, snapkv")));
  CacheSpec spec = Spec("h2o");
  for (const double ratio :
       {0.0, -0.1, 1.01, std::nan(""), std::numeric_limits<double>::infinity()}) {
    spec.cache_ratio = ratio;
    EXPECT_THAT(ErrorOf(spec), AllOf(StartsWith("cache.cache_ratio:"), HasSubstr("(0, 1]")));
  }
  spec = Spec("h2o");
  spec.max_cache_tokens = 0;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.max_cache_tokens: 0 is below 1"));
  spec.max_cache_tokens = 16;
  spec.sink_tokens = 4;
  spec.protected_window_size = 13;
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.max_cache_tokens:"), HasSubstr("16"), HasSubstr("4 + 13")));
  spec.protected_window_size = 12;
  EXPECT_TRUE(PlanCache(spec, {100}).ok());
  spec.sink_tokens = -1;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.sink_tokens: -1"));
  spec.sink_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.max_cache_tokens:"));
  spec = Spec("h2o");
  spec.max_cache_tokens = 16;
  spec.params["alpha"] = "1";
  EXPECT_EQ(ErrorOf(spec),
            "cache.params: 'alpha' is no parameter of policy h2o; one of rolling, budget_scope, "
            "head_floor, group_reduce, candidates");
  for (const std::string field : {"max_cache_tokens", "cache_ratio", "min_cache_tokens",
                                  "sink_tokens", "protected_window_size"}) {
    spec.params = {{field, "1"}};
    EXPECT_EQ(ErrorOf(spec),
              "cache.params: '" + field + "' is a field of its own; set cache." + field);
  }
  spec = Spec("streaming");
  spec.max_cache_tokens = 4;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.sink_tokens: 4 leaves no window"));
  spec = Spec("local");
  spec.max_cache_tokens = 4;
  spec.protected_window_size = 2;
  EXPECT_THAT(ErrorOf(spec),
              StartsWith("cache.protected_window_size: policy local does not take it"));
  spec = Spec("full");
  spec.max_cache_tokens = 4;
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.max_cache_tokens: 4 given, but policy full"));
  spec = Spec("full");
  spec.params["alpha"] = "1";
  EXPECT_EQ(ErrorOf(spec), "cache.params: 'alpha' is no parameter of policy full; it has none");
}

// Two fields at a time beyond the planner's 32-bit counts.
TEST(CachePlan, RefusalsNameTheRequestedNumbers) {
  constexpr int64_t kLimit = 4294967295;
  using Count = std::optional<int64_t> CacheSpec::*;
  const Count counts[] = {&CacheSpec::max_cache_tokens, &CacheSpec::min_cache_tokens,
                          &CacheSpec::sink_tokens, &CacheSpec::protected_window_size};
  int refused = 0;
  for (const PolicyInfo& policy : ListPolicies()) {
    for (const Count one : counts) {
      for (const Count other : counts) {
        CacheSpec spec;
        spec.policy = policy.name;
        if (one != &CacheSpec::max_cache_tokens) spec.cache_ratio = 0.5;
        spec.*one = spec.*other = kLimit;
        const absl::Status status =
            PlanCache(spec, ShapeFor(policy.name, {.tokens = 1000})).status();
        if (status.ok()) continue;
        ++refused;
        EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("21474836")))
            << policy.name;
      }
    }
  }
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace hydrant
