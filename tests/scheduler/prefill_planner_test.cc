#include "scheduler/prefill_planner.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant {
namespace {

constexpr PrefillCosts kCosts;

// The sum of which the cost function is the closed form.
TEST(PrefillPlannerTest, CostIsTheSumOverTokens) {
  double sum = 0;
  for (int i = 100; i < 9000; ++i) sum += 1 + (i + 0.5) / kCosts.attention_scale;
  EXPECT_NEAR(kCosts.Of(100, 9000), sum, 1e-6 * sum);
}

TEST(PrefillPlannerTest, AShortPromptGoesThroughAllLayersInOneStep) {
  const std::vector<OpenPrompt> prompts = {{100, {}}};
  const auto runs = PlanPrefill(prompts, 32, 512 * 32);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].part.layer_begin, 0);
  EXPECT_EQ(runs[0].part.layer_end, 32);
  EXPECT_EQ(runs[0].part.token_end, 100);
}

TEST(PrefillPlannerTest, CachedTokensAreSkippedInEveryLayer) {
  const std::vector<OpenPrompt> prompts = {{1000, {0, 960}, 960}};
  const auto runs = PlanPrefill(prompts, 32, 512 * 32);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].part.layer_end, 32);
  EXPECT_EQ(runs[0].part.token_begin, 960);
  EXPECT_EQ(runs[0].part.token_end, 1000);
}

TEST(PrefillPlannerTest, ALongPromptIsCutInEvenPartsOfOneLayer) {
  const std::vector<OpenPrompt> prompts = {{65536, {}}};
  const auto runs = PlanPrefill(prompts, 32, 512 * 32);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].part.layer_end, 1);
  EXPECT_EQ(runs[0].part.token_end % kQueryTile, 0);
  EXPECT_NEAR(kCosts.Of(0, runs[0].part.token_end), 512 * 32, 512 * 32 * 0.1);
}

// Later chunks attend to more context and are shorter, so that steps cost the same.
TEST(PrefillPlannerTest, ChunksShrinkAsTheContextGrows) {
  const std::vector<OpenPrompt> early = {{65536, {3, 0}}};
  const std::vector<OpenPrompt> late = {{65536, {3, 49152}}};
  const auto first = PlanPrefill(early, 32, 16384)[0];
  const auto last = PlanPrefill(late, 32, 16384)[0];
  EXPECT_GT(first.part.token_end, 3 * (last.part.token_end - 49152));
}

TEST(PrefillPlannerTest, TheOldestHasHalfAndTheShortestComesNext) {
  const std::vector<OpenPrompt> prompts = {{65536, {}}, {3000, {}}, {64, {}}};
  const auto runs = PlanPrefill(prompts, 4, 4 * 512);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_NEAR(kCosts.Of(0, runs[0].part.token_end), 1024, 200);
  EXPECT_EQ(runs[2].part.layer_end, 4);  // all 64 tokens at once
  EXPECT_NEAR(kCosts.Of(0, runs[1].part.token_end), 1024 - 4 * 64, 200);
}

TEST(PrefillPlannerTest, ATinyBudgetStillMovesTheOldest) {
  const std::vector<OpenPrompt> prompts = {{65536, {5, 64000}}, {100, {}}};
  const auto runs = PlanPrefill(prompts, 32, 1);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].prompt, 0);
  EXPECT_EQ(runs[0].part.token_end, 64000 + kQueryTile);
}

// Random prompts, prefilled to their ends: every run obeys the contract, no step exceeds its bound,
// all prompts finish.
TEST(PrefillPlannerTest, EveryPromptIsReadInOrderWithinTheBudget) {
  constexpr int kSeed = 99;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    const int num_layers = 1 + random() % 5;
    const double budget = num_layers * (1.0 + random() % 600);
    std::vector<OpenPrompt> open;
    for (int i = 1 + random() % 5; i > 0; --i) {
      OpenPrompt& prompt = open.emplace_back();
      prompt.num_tokens = static_cast<int>(1 + random() % (random() % 2 == 0 ? 100 : 6000));
      const int tiles = (prompt.num_tokens - 1) / kQueryTile;  // some need no prefill
      if (random() % 2 == 0)
        prompt.first_token = static_cast<int>(random() % (tiles + 1)) * kQueryTile;
      prompt.cursor.token = prompt.first_token;
    }
    double work = 0;
    for (const OpenPrompt& prompt : open)
      work += num_layers * kCosts.Of(prompt.first_token, prompt.num_tokens);
    int steps = 0;
    for (; !open.empty(); ++steps) {
      const auto runs = PlanPrefill(open, num_layers, budget);
      ASSERT_FALSE(runs.empty());
      ASSERT_EQ(runs[0].prompt, 0);
      double cost = 0, tiles = 0;
      for (const auto& [index, run] : runs) {
        OpenPrompt& prompt = open[index];
        ASSERT_EQ(run.layer_begin, prompt.cursor.layer);
        ASSERT_EQ(run.token_begin, prompt.cursor.token);
        ASSERT_GT(run.token_end, run.token_begin);
        ASSERT_TRUE(run.token_end == prompt.num_tokens || run.token_end % kQueryTile == 0);
        ASSERT_TRUE(run.layer_end == run.layer_begin + 1 ||
                    (run.token_begin == prompt.first_token && run.token_end == prompt.num_tokens));
        ASSERT_LE(run.layer_end, num_layers);
        cost += (run.layer_end - run.layer_begin) * kCosts.Of(run.token_begin, run.token_end);
        tiles += kCosts.Of(std::max(0, run.token_end - kQueryTile), run.token_end);
        const bool layer_done = run.token_end == prompt.num_tokens;
        prompt.cursor = {layer_done ? run.layer_end : run.layer_begin,
                         layer_done ? prompt.first_token : run.token_end};
      }
      ASSERT_LE(cost, 1.5 * budget + tiles);
      std::erase_if(open,
                    [&](const OpenPrompt& prompt) { return prompt.cursor.layer == num_layers; });
    }
    // The budget is used up: a lone prompt wastes most if its share is no whole number of layers.
    EXPECT_LE(steps, 2 * std::ceil(work / budget) + 5 * num_layers);
  }
}

}  // namespace
}  // namespace hydrant
