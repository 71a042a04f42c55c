// Keys of recorded decode steps, and the mean entries by which plans estimate their work.
#include "engine/run/step/graph_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "tests/engine/cache/plan_view.h"

namespace hydrant {
namespace {

constexpr uint32_t kSeed = 11;
constexpr int kMaxRows = 256;

CachePlan PlanOf(const CacheSpec& spec, PromptShape prompt) {
  prompt.predicts_scores = spec.policy == "learned";
  absl::StatusOr<CachePlan> plan = PlanCache(spec, prompt);
  EXPECT_TRUE(plan.ok()) << spec.policy << ": " << plan.status();
  return plan.ok() ? *std::move(plan) : CachePlan();
}

CacheSpec SpecOf(const std::string& policy, std::map<std::string, std::string> params = {}) {
  CacheSpec spec;
  spec.policy = policy;
  spec.params = std::move(params);
  if (policy != "full") spec.max_cache_tokens = 100;
  return spec;
}

auto Members(const GraphShape& s) {
  return std::tuple(s.rows, s.max_entries, s.max_scored_entries, s.weighted, s.revised,
                    s.mean_entries);
}

// A recorded step is replayed with the shape of its recording: shapes with one key must be equal.
TEST(GraphShapeTest, KeysTellRoundedShapesApart) {
  RecordProperty("seed", kSeed);
  std::mt19937 random(kSeed);
  const auto draw = [&random] { return static_cast<int>(random() >> (2 + random() % 30)); };
  std::map<uint64_t, GraphShape> seen;
  for (int i = 0; i < 20000; ++i) {
    const GraphShape exact = {.rows = 1 + static_cast<int>(random() % kMaxRows),
                              .max_entries = draw(),
                              .max_scored_entries = draw(),
                              .weighted = random() % 2 == 0,
                              .revised = random() % 2 == 0,
                              .mean_entries = draw()};
    const GraphShape rounded = RoundedUp(exact, kMaxRows);
    ASSERT_GE(rounded.rows, exact.rows);
    ASSERT_GE(rounded.max_entries, exact.max_entries);
    ASSERT_GE(rounded.max_scored_entries, exact.max_scored_entries);
    ASSERT_GE(rounded.mean_entries, exact.mean_entries);
    ASSERT_LE(rounded.mean_entries, std::max(2 * int64_t{exact.mean_entries} - 1, int64_t{0}));
    const auto [found, is_new] = seen.emplace(rounded.Key(), rounded);
    ASSERT_EQ(Members(found->second), Members(rounded)) << "seed " << kSeed << ", draw " << i;
  }
  EXPECT_GT(seen.size(), 10000u);
}

// The mean of a ragged plan is the shared budget per head, however it is distributed.
TEST(GraphShapeTest, MeanOfARaggedPlanIsItsAverageHead) {
  const PromptShape prompt = {.tokens = 1000, .num_layers = 4, .num_kv_heads = 8};
  CachePlan plan = PlanOf(SpecOf("ada-snapkv"), prompt);
  ASSERT_TRUE(IsReported(plan));
  EXPECT_EQ(plan.MeanEntriesAfter(1000), 100);
  EXPECT_EQ(plan.MeanEntriesAfter(1007), 107);
  EXPECT_GT(plan.EntriesAfter(1007), 2 * 107);

  const std::vector<int32_t> kept = {20, 20, 20, 20, 20, 20, 20, 660};  // of a layer, mean 100
  plan = PlanOf(SpecOf("ada-snapkv", {{"decode_cap", "130"}}), prompt);
  for (const int tokens : {1000, 1029, 1030, 1031, 2000}) {
    int64_t sum = 0;
    for (const int32_t keep : kept) sum += plan.Keeping(keep).EntriesAfter(tokens);
    EXPECT_EQ(plan.MeanEntriesAfter(tokens) * std::ssize(kept), sum) << tokens;
  }
}

TEST(GraphShapeTest, MeanOfAPlanThatShrinksRaggedIsItsCap) {
  const CachePlan plan =
      PlanOf(SpecOf("co2", {{"measurement_steps", "20"}, {"budget_scope", "model"}}),
             {.tokens = 1000, .num_layers = 4, .num_kv_heads = 8});
  ASSERT_TRUE(IsCompactedUnevenly(plan));
  EXPECT_EQ(plan.MeanEntriesAfter(DelayedUntil(plan)), DelayedUntil(plan)) << "whole until then";
  EXPECT_EQ(plan.MeanEntriesAfter(DelayedUntil(plan) + 1), 100);
  EXPECT_GT(plan.EntriesAfter(DelayedUntil(plan) + 1), 100);
}

// No policy's mean exceeds the bound; it equals the bound if heads do not differ.
TEST(GraphShapeTest, MeanIsWithinTheBoundOfEveryPolicy) {
  for (const PolicyInfo& info : ListPolicies()) {
    for (const int64_t n : {1, 99, 100, 101, 700}) {
      const CachePlan plan =
          PlanOf(SpecOf(info.name), {.tokens = n, .num_layers = 4, .num_kv_heads = 2});
      for (const int64_t tokens : {n, n + 1, n + 40, n + 1000}) {
        SCOPED_TRACE(info.name + ", " + std::to_string(n) + " of " + std::to_string(tokens));
        EXPECT_GT(plan.MeanEntriesAfter(tokens), 0);
        EXPECT_LE(plan.MeanEntriesAfter(tokens), plan.EntriesAfter(tokens));
        if (IsReported(plan) || IsCompactedUnevenly(plan)) continue;
        EXPECT_EQ(plan.MeanEntriesAfter(tokens), plan.EntriesAfter(tokens));
      }
    }
  }
}

}  // namespace
}  // namespace hydrant
