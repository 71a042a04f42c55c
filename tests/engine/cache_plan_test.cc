#include "engine/cache/cache_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace hydrant {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

CacheSpec Spec(std::string policy) {
  CacheSpec spec;
  spec.policy = std::move(policy);
  return spec;
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
  EXPECT_THAT(ErrorOf(spec), HasSubstr("has no such parameter"));
}

// The budget bounds the prompt; what follows is appended, up to decode_cap where that is given.
TEST(CachePlan, SnapKvCutsThePromptAlone) {
  CacheSpec spec = Spec("snapkv");
  spec.max_cache_tokens = 100;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.budget, 100);
  EXPECT_EQ(plan.cap, kNoCap);
  EXPECT_EQ(plan.LayerSpan(0).dropped, 900);
  EXPECT_EQ(plan.EntriesAfter(1000), 100);
  EXPECT_EQ(plan.EntriesAfter(1500), 600);
  EXPECT_EQ(plan.window.queries, 32);
  EXPECT_EQ(plan.window.kernel, 7);
  EXPECT_EQ(plan.window.pooling, Pooling::kMax);
  EXPECT_FALSE(plan.rule.scored);
  plan = *PlanCache(spec, {80});
  EXPECT_EQ(plan.LayerSpan(0).dropped, 0);
  EXPECT_EQ(plan.EntriesAfter(80), 80);
  spec.max_cache_tokens = 20;
  spec.params = {{"decode_cap", "30"}, {"pooling", "avg"}, {"kernel_size", "3"}};
  plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.window.queries, 10) << "at most half the budget unless asked for";
  EXPECT_EQ(plan.EntriesAfter(1000), 20);
  EXPECT_EQ(plan.EntriesAfter(1007), 27);
  EXPECT_EQ(plan.EntriesAfter(2000), 30);
  EXPECT_TRUE(plan.rule.scored);
  EXPECT_EQ(plan.window.pooling, Pooling::kMean);
}

TEST(CachePlan, SnapKvsErrorsNameTheParameter) {
  CacheSpec spec = Spec("snapkv");
  spec.max_cache_tokens = 100;
  const auto error_with = [&](const std::string& name, const std::string& value) {
    spec.params = {{name, value}};
    return ErrorOf(spec, 1000);
  };
  EXPECT_THAT(error_with("kernel_size", "6"), StartsWith("cache.params.kernel_size: 6 is not odd"));
  for (const char* bad : {"", "0", "65", "7x", " 7", "1e1", "99999999999999999999"}) {
    EXPECT_THAT(error_with("kernel_size", bad),
                AllOf(StartsWith("cache.params.kernel_size: '"), HasSubstr("[1, 63]")));
  }
  EXPECT_THAT(error_with("pooling", "median"),
              AllOf(StartsWith("cache.params.pooling: 'median'"), HasSubstr("max, avg")));
  EXPECT_THAT(error_with("decode_cap", "99"),
              AllOf(StartsWith("cache.params.decode_cap: '99'"), HasSubstr("[100, ")));
  EXPECT_THAT(error_with("alpha", "1"), StartsWith("cache.params.alpha: policy snapkv has no"));
  spec.params.clear();
  spec.protected_window_size = 0;
  EXPECT_THAT(ErrorOf(spec, 1000), StartsWith("cache.protected_window_size: 0"));
  spec.protected_window_size = 101;
  EXPECT_THAT(ErrorOf(spec, 1000), StartsWith("cache.max_cache_tokens: the budget of 100"));
}

// Whole until the measurement is over, then C at once.
TEST(CachePlan, Co2KeepsThePromptForAWhile) {
  CacheSpec spec = Spec("co2");
  spec.max_cache_tokens = 101;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.whole_until, 1020);
  EXPECT_EQ(plan.EntriesAfter(1000), 1000);
  EXPECT_EQ(plan.EntriesAfter(1020), 1020);
  EXPECT_EQ(plan.EntriesAfter(1021), 101);
  EXPECT_EQ(plan.MostUntil(1010), 1010);
  EXPECT_EQ(plan.MostUntil(5000), 1020);
  EXPECT_EQ(plan.rule.recent, 25);
  EXPECT_FLOAT_EQ(plan.rule.decay, 0.8f);
  EXPECT_FLOAT_EQ(plan.rule.gain, 0.2f);
  EXPECT_EQ(PlanCache(spec, {81})->whole_until, 0) << "101 entries are within the budget";
  EXPECT_EQ(PlanCache(spec, {82})->whole_until, 102);
  spec.params = {
      {"alpha", "0"}, {"measurement_steps", "0"}, {"rho", "1"}, {"initial_score", "mean"}};
  plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.whole_until, 0);
  EXPECT_EQ(plan.rule.decay, 1.0f);
  EXPECT_EQ(plan.rule.gain, 1.0f);
  EXPECT_EQ(plan.rule.recent, 101);
  EXPECT_TRUE(plan.mean_scores);
  spec.params = {{"alpha", "1.5"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.alpha: '1.5' is not a number in [0, 1]"));
  for (const char* bad : {"", "nan", "0.1x", "-0.1", "inf"}) {
    spec.params = {{"rho", bad}};
    EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.rho: '"));
  }
  spec.params = {{"measurement_steps", "-1"}};
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.measurement_steps: '-1'"));
}

TEST(CachePlan, TovaProtectsNothingUnlessAsked) {
  CacheSpec spec = Spec("tova");
  spec.max_cache_tokens = 64;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.Protected(), 0);
  EXPECT_EQ(plan.window.queries, 1);
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
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.budget_scope: policy tova has no such"));
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
  EXPECT_TRUE(PlanCache(spec, {1000})->IsDeferred());
}

// Down to C - m, up to C, down again.
TEST(CachePlan, ScissorhandsDropsManyAtOnce) {
  CacheSpec spec = Spec("scissorhands");
  spec.max_cache_tokens = 101;
  CachePlan plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.drop, 50);
  EXPECT_EQ(plan.rule.recent, 10);
  EXPECT_EQ(plan.rule.history, 50);
  EXPECT_EQ(plan.window.queries, 400);
  EXPECT_EQ(plan.ShrunkEntries(), 51);
  EXPECT_EQ(plan.KeptOfPrompt(0), 51);
  int32_t held = 51, most = 51;
  for (int64_t tokens = 1000; tokens < 1300; ++tokens) {
    EXPECT_EQ(plan.EntriesAfter(tokens), held);
    EXPECT_EQ(plan.MostUntil(tokens), most);
    EXPECT_EQ(plan.ShrinksAfter(tokens), held == 101);
    if (plan.ShrinksAfter(tokens)) held = 51;
    most = std::max(most, ++held);
  }
  plan = *PlanCache(spec, {101});
  EXPECT_EQ(plan.KeptOfPrompt(0), 101) << "the budget is not exceeded";
  EXPECT_TRUE(plan.ShrinksAfter(101));
  EXPECT_EQ(plan.EntriesAfter(102), 52);
  EXPECT_EQ(plan.window.queries, 50) << "those before the first drop";
  EXPECT_EQ(PlanCache(spec, {60})->window.queries, 9);
  EXPECT_EQ(PlanCache(spec, {40})->window.queries, 0);
  spec.params = {{"history_window", "7"}, {"drop_tokens", "100"}};
  plan = *PlanCache(spec, {1000});
  EXPECT_EQ(plan.window.queries, 7);
  EXPECT_EQ(plan.rule.history, 7);
  EXPECT_EQ(plan.rule.recent, 1);
  EXPECT_EQ(plan.ShrunkEntries(), 1);
}

TEST(CachePlan, ScissorhandsErrorsNameFieldAndRange) {
  CacheSpec spec = Spec("scissorhands");
  spec.max_cache_tokens = 1;
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.max_cache_tokens: "), HasSubstr("at least 2")));
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

// Window, value samples, clusters: they sum to the budget.
TEST(CachePlan, SubGenSplitsItsBudget) {
  const auto split = [](const CacheSpec& spec) {
    const CachePlan plan = *PlanCache(spec, {1000});
    EXPECT_EQ(plan.subgen.Capacity(), plan.cap);
    EXPECT_EQ(plan.rule.recent, plan.subgen.recent);
    EXPECT_TRUE(plan.rule.weighted);
    EXPECT_FALSE(plan.rule.scored);
    return std::vector<int>{plan.subgen.recent, plan.subgen.value_samples,
                            plan.subgen.cluster_samples, plan.subgen.max_clusters};
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
  EXPECT_EQ(PlanCache(spec, {1000})->subgen.sinks, 4);
  EXPECT_EQ(split(spec), (std::vector<int>{64, 32, 4, 8}));
  for (int budget = 4; budget < 70; ++budget) {
    spec = Spec("subgen");
    spec.max_cache_tokens = budget;
    const std::vector<int> parts = split(spec);
    EXPECT_GE(parts[0], std::max(2, budget / 2)) << budget;
    for (int i = 1; i < 4; ++i) EXPECT_GE(parts[i], 1) << budget;
  }
}

TEST(CachePlan, SubGenIsWholeUntilItsBudgetIsExceeded) {
  CacheSpec spec = Spec("subgen");
  spec.max_cache_tokens = 100;
  EXPECT_EQ(PlanCache(spec, {101})->whole_until, 0);
  const CachePlan plan = *PlanCache(spec, {100});
  EXPECT_EQ(plan.whole_until, 100);
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
  EXPECT_EQ(plan.prompt_score, PromptScore::kKCenter);
  EXPECT_EQ(plan.rule.recent, 16);
  EXPECT_EQ(plan.EntriesAfter(100), 33);
  EXPECT_EQ(plan.EntriesAfter(130), 63);
  EXPECT_EQ(PlanCache(spec, {20})->EntriesAfter(20), 20);
  spec.protected_window_size = 33;
  EXPECT_EQ(PlanCache(spec, {100})->prompt_score, PromptScore::kNone) << "no centre to choose";
  spec.protected_window_size = 34;
  EXPECT_THAT(ErrorOf(spec),
              AllOf(StartsWith("cache.protected_window_size: 34"), HasSubstr("[0, 33]")));
}

TEST(CachePlan, EveryErrorNamesItsFieldAndLimit) {
  EXPECT_THAT(ErrorOf(Spec("h3o")),
              AllOf(StartsWith("cache.cache_policy: 'h3o'"),
                    HasSubstr("full, local, streaming, h2o, scissorhands, tova, snapkv")));
  EXPECT_THAT(ErrorOf(Spec("h2o")), HasSubstr("needs max_cache_tokens or cache_ratio"));
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
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.params.alpha: policy h2o has no such parameter"));
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
  EXPECT_THAT(ErrorOf(spec), StartsWith("cache.max_cache_tokens: policy full"));
}

}  // namespace
}  // namespace hydrant
