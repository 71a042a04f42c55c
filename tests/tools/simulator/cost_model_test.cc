#include "tools/simulator/cost_model.h"

#include <cmath>
#include <iostream>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/simulator/cost_fit.h"

namespace hydrant::sim {
namespace {

using testing::HasSubstr;

// A day's steps: decode alone, and with prefill.
std::vector<StepTaken> DrawSteps(const CostModel& model, double noise, uint64_t seed) {
  std::mt19937_64 random(seed);
  CostModel noisy = model;
  noisy.noise = noise;
  std::vector<StepTaken> steps;
  for (int i = 0; i < 4000; ++i) {
    StepTaken step;
    step.work.rows = static_cast<double>(random() % 40);
    step.work.pages = step.work.rows * static_cast<double>(90 + random() % 4000);
    if (i % 3 == 0) {
      const auto tokens = static_cast<double>(32 + random() % 480);
      step.work.prompt_tokens = tokens;
      step.work.prompt_pairs = tokens * static_cast<double>(random() % 2000);
    }
    if (step.work.Empty()) continue;
    double us = model.Predict(step.work);
    const double deviation = noisy.NoiseOf(us);
    if (noise > 0)
      us *= std::lognormal_distribution<double>(-deviation * deviation / 2, deviation)(random);
    step.begin = 1000;
    step.end = step.begin + std::llround(us);
    steps.push_back(step);
  }
  return steps;
}

const CostModel kKnown = {.step_us = 5200,
                          .row_us = 1400,
                          .page_us = 0.4,
                          .prompt_token_us = 800,
                          .prompt_pair_us = 0.25};

void ExpectKnown(const CostModel& model, double share) {
  EXPECT_NEAR(model.step_us, kKnown.step_us, share * kKnown.step_us);
  EXPECT_NEAR(model.row_us, kKnown.row_us, share * kKnown.row_us);
  EXPECT_NEAR(model.page_us, kKnown.page_us, share * kKnown.page_us);
  EXPECT_NEAR(model.prompt_token_us, kKnown.prompt_token_us, share * kKnown.prompt_token_us);
  EXPECT_NEAR(model.prompt_pair_us, kKnown.prompt_pair_us, share * kKnown.prompt_pair_us);
}

TEST(CostFitTest, FindsTheCostsOfSteps) {
  const auto fit = FitCostModel(DrawSteps(kKnown, 0, 1));
  ASSERT_TRUE(fit.ok()) << fit.status();
  ExpectKnown(fit->model, 1e-3);
  EXPECT_LT(fit->model.noise, 1e-4);
}

TEST(CostFitTest, FindsItInNoiseAndTheNoiseToo) {
  const uint64_t seed = 2;
  std::cout << "seed " << seed << "\n";
  const std::vector<StepTaken> steps = DrawSteps(kKnown, 0.15, seed);
  const auto fit = FitCostModel(steps);
  ASSERT_TRUE(fit.ok()) << fit.status();
  ExpectKnown(fit->model, 0.06);
  EXPECT_NEAR(fit->model.noise, 0.15, 0.02);
  double taken = 0, predicted = 0;
  for (const StepTaken& step : steps) {
    taken += static_cast<double>(step.end - step.begin);
    predicted += fit->model.Predict(step.work);
  }
  EXPECT_NEAR(predicted, taken, 1e-6 * taken);
}

// Steps during a stall of the machine count in the sum, but do not bias the fit.
TEST(CostFitTest, AFewStallsDoNotBendIt) {
  std::vector<StepTaken> steps = DrawSteps(kKnown, 0, 3);
  for (size_t i = 0; i < steps.size(); i += 100) steps[i].end += 300'000;
  const auto fit = FitCostModel(steps);
  ASSERT_TRUE(fit.ok()) << fit.status();
  const double scale = fit->model.step_us / kKnown.step_us;
  EXPECT_NEAR(fit->model.prompt_token_us, scale * kKnown.prompt_token_us,
              0.05 * kKnown.prompt_token_us);
  EXPECT_GT(scale, 1.0);
}

TEST(CostFitTest, TooFewStepsAreRefused) {
  const std::vector<StepTaken> steps = DrawSteps(kKnown, 0, 4);
  const auto fit = FitCostModel(std::span(steps).first(5));
  EXPECT_THAT(std::string(fit.status().message()), HasSubstr("5 steps are too few"));
}

// In the format of server/observe/step_trace.cc, with a truncated last line.
TEST(CostFitTest, ReadsStepsOfATrace) {
  const auto steps = ParseStepTrace(
      R"([{"ph":"M","pid":1,"name":"process_name","args":{"name":"hydrantd"}},
{"ph":"X","pid":1,"tid":1,"name":"decode","ts":1000,"dur":250,"args":{"decoding":3,"pages":60,"prompt_tokens":17,"prompt_pairs":151,"predicted_us":1901}},
{"ph":"C","pid":1,"name":"pages","ts":1250,"args":{"used":5,"swapped":0}},
{"ph":"X","pid":1,"tid":1,"na)",
      "steps.json");
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_EQ((*steps)[0].end - (*steps)[0].begin, 250);
  EXPECT_EQ((*steps)[0].work.rows, 3);
  EXPECT_EQ((*steps)[0].work.pages, 60);
  EXPECT_EQ((*steps)[0].work.prompt_tokens, 17);
  EXPECT_EQ((*steps)[0].work.prompt_pairs, 151);
}

TEST(CostFitTest, NamesTheLineThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"[{}\n,oops\n]\n", "steps.json, line 2: no JSON object"},
      {"[{\"ph\":\"X\",\"ts\":1,\"dur\":5,\"args\":{\"decoding\":3}}\n]\n", "line 1: a step needs"},
      {"[{\"ph\":\"X\",\"ts\":1,\"dur\":5}\n]\n", "line 1: args: missing"}};
  for (const auto& [text, error] : cases) {
    const auto steps = ParseStepTrace(text, "steps.json");
    EXPECT_THAT(std::string(steps.status().message()), HasSubstr(error)) << text;
  }
}

TEST(CostModelTest, AFileRoundTrips) {
  CostModel model = kKnown;
  model.noise = 0.1;
  model.source = "a test";
  const auto again = ParseCostModel(ToJson(model), "costs.json");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToJson(*again), ToJson(model));
}

TEST(CostModelTest, NamesTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "costs.json: no JSON object"},
      {"{\"step_us\": -1}", "step_us: -1 is outside [0, "},
      {"{\"step_us\": \"1\"}", "step_us: no number"},
      {"{\"noise\": 3}", "noise: 3 is outside [0, 2]"},
      {"{\"stepus\": 1}", "stepus: there is no such field"},
      {"{\"page_us\": 1}", "steps would take no time"}};
  for (const auto& [text, error] : cases) {
    const auto model = ParseCostModel(text, "costs.json");
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(error)) << text;
  }
  EXPECT_THAT(std::string(ReadCostModel("/nowhere/a.json").status().message()),
              HasSubstr("/nowhere/a.json: cannot be opened"));
}

}  // namespace
}  // namespace hydrant::sim
