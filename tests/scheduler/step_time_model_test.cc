// The learned step time, compared with a machine of known times.
#include "scheduler/step_time_model.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace hydrant {
namespace {

// A machine like two cores with a small model: 4 ms a step, 0.8 ms a row.
class Machine {
 public:
  explicit Machine(uint64_t seed) : generator_(seed) {}

  double Time(const StepWork& work) const {
    return slow * (4000 + 800 * work.rows + 0.9 * work.pages + 230 * work.prompt_tokens +
                   0.05 * work.prompt_pairs);
  }
  StepWork Decode(int most_rows) {
    const double rows = 1 + Draw(most_rows);
    return {.rows = rows, .pages = rows * (50 + Draw(2000))};
  }
  // A chunk of a prompt of up to 4,096 tokens.
  StepWork Prompt() {
    const double tokens = 16 + Draw(240);
    return {.prompt_tokens = tokens, .prompt_pairs = tokens * Draw(4096)};
  }
  double Noisy(const StepWork& work) {
    const double noise = 1 + std::normal_distribution(0.0, noise_share)(generator_);
    const bool disturbed = Draw(1000) < 1000 * disturbed_share;
    return Time(work) * std::max(0.5, noise) * (disturbed ? 5.0 : 1.0);
  }
  double Draw(double most) { return std::uniform_real_distribution(0.0, most)(generator_); }

  double slow = 1.0;
  double noise_share = 0.05;
  double disturbed_share = 0.0;

 private:
  std::mt19937_64 generator_;
};

class StepTimeModelTest : public testing::Test {
 protected:
  void Learn(int steps) {
    for (int i = 0; i < steps; ++i) {
      StepWork work;
      if (i % 3 != 0) work += machine.Decode(32);
      if (i % 3 != 1) work += machine.Prompt();
      model.Observe(work, machine.Noisy(work));
    }
  }
  // Mean of |predicted / true - 1| over steps like those of Learn().
  double Error() {
    double sum = 0;
    for (int i = 0; i < 1000; ++i) {
      StepWork work;
      if (i % 3 != 0) work += machine.Decode(32);
      if (i % 3 != 1) work += machine.Prompt();
      sum += std::abs(model.Predict(work) / machine.Time(work) - 1);
    }
    return sum / 1000;
  }

  Machine machine{4711};
  StepTimeModel model;
};

TEST_F(StepTimeModelTest, KnowsNothingAtFirst) {
  EXPECT_FALSE(model.HasDecodeSamples());
  EXPECT_FALSE(model.HasPromptSamples());
  EXPECT_EQ(model.Predict({.rows = 5, .prompt_tokens = 100}), 0);
  model.Observe({}, 1000);  // an empty step
  EXPECT_EQ(model.Predict({.rows = 5}), 0);
}

TEST_F(StepTimeModelTest, LearnsStepTimes) {
  Learn(30);
  EXPECT_TRUE(model.HasDecodeSamples());
  EXPECT_TRUE(model.HasPromptSamples());
  EXPECT_LT(Error(), 0.10);
  Learn(500);
  EXPECT_LT(Error(), 0.03);
  EXPECT_NEAR(model.relative_error(), 0.04, 0.03);  // the remaining noise
  EXPECT_NEAR(model.AttentionScale(), 230 / 0.05, 0.2 * 230 / 0.05);
  // One more row.
  EXPECT_NEAR(model.Marginal({.rows = 1, .pages = 1000}), 1700, 250);
}

TEST_F(StepTimeModelTest, IsNotMisledByStepsThatWereDisturbed) {
  machine.disturbed_share = 0.05;
  Learn(1000);
  EXPECT_LT(Error(), 0.08);
}

TEST_F(StepTimeModelTest, RemembersPromptsWhileNoneAreRead) {
  Learn(300);
  for (int i = 0; i < 20'000; ++i) {
    const StepWork work = {.rows = 8, .pages = 8000};  // the same work each time
    model.Observe(work, machine.Noisy(work));
  }
  EXPECT_LT(Error(), 0.15);
}

TEST_F(StepTimeModelTest, FollowsAMachineThatBecomesSlower) {
  Learn(500);
  machine.slow = 2.0;
  Learn(1500);
  EXPECT_LT(Error(), 0.06);
}

TEST_F(StepTimeModelTest, NoCoefficientIsNegative) {
  for (int i = 0; i < 300; ++i) {  // more rows take less time
    const double rows = 1 + machine.Draw(31);
    model.Observe({.rows = rows, .pages = rows * 10}, 10'000 - 200 * rows);
    EXPECT_GE(model.Marginal({.rows = 1}), 0);
    EXPECT_GE(model.Marginal({.pages = 1}), 0);
    EXPECT_GE(model.Predict({}), 0);
  }
  EXPECT_NEAR(model.Predict({.rows = 16}), 6800, 1500);
}

}  // namespace
}  // namespace hydrant
