#include "scheduler/pool_forecast.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/output_history.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

TEST(OutputHistory, SaysNothingUntilEnoughHaveEnded) {
  OutputHistory history;
  EXPECT_EQ(history.MeanOf(100), 100);  // unknown: assume the limit
  for (int i = 0; i < 7; ++i) history.Observe(10, 100);
  EXPECT_FALSE(history.IsKnown());
  EXPECT_EQ(history.RestOf(0, 100), 0);
  history.Observe(10, 100);
  EXPECT_TRUE(history.IsKnown());
  EXPECT_DOUBLE_EQ(history.RestOf(0, 100), 10);
}

TEST(OutputHistory, PredictsFromLongerOutputs) {
  OutputHistory history;
  for (int i = 0; i < 5; ++i) history.Observe(20, 100);
  for (int i = 0; i < 5; ++i) history.Observe(600, 1000);
  EXPECT_DOUBLE_EQ(history.MeanOf(50), 20);
  EXPECT_DOUBLE_EQ(history.RestOf(0, 100), 40);          // of 20 and 60
  EXPECT_DOUBLE_EQ(history.RestOf(30, 100), 30);         // of 60 alone
  EXPECT_DOUBLE_EQ(history.RestOf(60, 100), 0);          // none is longer
  for (int i = 0; i < 64; ++i) history.Observe(50, 50);  // old observations expire
  EXPECT_DOUBLE_EQ(history.RestOf(30, 100), 20);
}

// A client without max_tokens is not expected to use up the limit, whatever other clients do.
TEST(OutputHistory, ADefaultLimitPredictsNothing) {
  OutputHistory history;
  for (int i = 0; i < 32; ++i) {
    history.Observe(64, 64);
    history.Observe(200, 1'000'000);
  }
  EXPECT_DOUBLE_EQ(history.RestOf(0, 1'000'000), 132);
  EXPECT_DOUBLE_EQ(history.RestOf(100, 1'000'000), 100);
  EXPECT_LE(history.RestOf(0, 64), 64);
  EXPECT_LE(history.MeanOf(1'000'000), 132);
}

// Compared with the sum of all caches at each token.
TEST(PoolForecast, FitsWhereNoStepHoldsMore) {
  std::mt19937 random(7);
  SCOPED_TRACE("seed 7");
  const auto draw = [&](int most) { return static_cast<double>(random() % (most + 1)); };
  int fitted = 0;
  for (int round = 0; round < 2000; ++round) {
    PoolForecast forecast;
    std::vector<PoolForecast::Holder> holders(1 + random() % 6);
    for (PoolForecast::Holder& holder : holders) {
      holder = {.pages = draw(20), .per_token = draw(8) / 4, .tokens = draw(30)};
      holder.most = holder.pages + draw(30);
      forecast.Add(holder);
    }
    double most = 0;
    for (int token = 0; token <= 30; ++token) {
      double held = 0;
      for (const PoolForecast::Holder& holder : holders) {
        if (token <= holder.tokens)
          held += std::min(holder.most, holder.pages + token * holder.per_token);
      }
      most = std::max(most, held);
    }
    const double pool = most - 10 + draw(20);
    fitted += most <= pool ? 1 : 0;
    EXPECT_EQ(forecast.Fits(pool), most <= pool) << round;
  }
  EXPECT_GT(fitted, 500);
}

// Caches that grow to three times their size at admission, in a pool for four of them. Returns the
// peak of running sequences and the number of preemptions.
std::pair<int, uint64_t> RunFlood(SchedulerHarness* harness) {
  for (int i = 0; i < 40; ++i) harness->Add(MakeRequest(16, 32, i));
  int max_running = 0;
  while (!harness->scheduler.Empty()) {
    harness->Step();
    max_running = std::max(max_running, harness->scheduler.Stats().running);
  }
  for (auto& [handle, stream] : harness->streams) EXPECT_TRUE(stream.finished.has_value());
  return {max_running, harness->scheduler.Stats().preemptions};
}

EngineLimits PoolForFour() {
  EngineLimits limits = SmallLimits();
  limits.num_blocks = 200;
  return limits;
}

TEST(Admission, NoPreemptionOnceOutputLengthsAreKnown) {
  SchedulerHarness harness(PoolForFour());
  for (int i = 0; i < 8; ++i) {
    harness.Add(MakeRequest(8, 32, 100 + i));
    harness.RunToEnd();
  }
  const auto [max_running, preemptions] = RunFlood(&harness);
  EXPECT_EQ(preemptions, 0);
  EXPECT_GE(max_running, 4);  // the pool is used, too

  SchedulerHarness unknowing(PoolForFour());
  EXPECT_GT(RunFlood(&unknowing).second, 0);
}

// Shared pages count once: a prefix common to all is in the pool once.
TEST(Admission, SharedPagesCountOnce) {
  EngineLimits limits = SmallLimits();
  limits.max_model_len = 400;
  limits.prefill_arena_tokens = 1000;
  limits.num_blocks = 500;  // a prompt takes 264 of them
  limits.table_entries = 4000;
  limits.num_prefix_blocks = 40;
  SchedulerHarness harness(limits);
  for (int i = 0; i < 8; ++i) harness.Add(MakeRequest(8, 20, 100 + i));
  harness.RunToEnd();
  for (TokenId i = 0; i < 6; ++i) {
    Request request = MakeRequest(264, 20, i);
    std::fill(request.prompt.begin(), request.prompt.end(), TokenId{7});
    request.prompt.back() = i;
    harness.Add(std::move(request));
  }
  int max_running = 0;
  while (!harness.scheduler.Empty()) {
    harness.Step();
    max_running = std::max(max_running, harness.scheduler.Stats().running);
  }
  EXPECT_EQ(max_running, 6);
  EXPECT_EQ(harness.scheduler.Stats().preemptions, 0);
}

// Answers longer than the earlier ones: sequences are preempted, and all finish.
TEST(Admission, AnswersThatAreLongerThanBeforeEndAsWell) {
  SchedulerHarness harness(PoolForFour());
  harness.engine.choose = [](uint64_t seed, int32_t position) -> std::optional<TokenId> {
    if (seed >= 100 && position >= 10) return FakeTokenizer::kEog;
    return std::nullopt;
  };
  for (int i = 0; i < 8; ++i) harness.Add(MakeRequest(8, 40, 100 + i));
  harness.RunToEnd();
  for (int i = 0; i < 12; ++i) harness.Add(MakeRequest(16, 40, i));
  harness.RunToEnd();
  EXPECT_GT(harness.scheduler.Stats().preemptions, 0);
  for (auto& [handle, stream] : harness.streams) EXPECT_TRUE(stream.finished.has_value()) << handle;
}

}  // namespace
}  // namespace hydrant
