#include "tools/load/run/measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/load/outcomes.h"

namespace hydrant::load {
namespace {

using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

// Values of numpy.percentile([15, 20, 35, 40, 50], q).
TEST(QuantileTest, LiesOnTheLineBetweenTheNearest) {
  std::vector<double> values = {50, 35, 15, 40, 20};
  const Distribution described = Describe(&values);
  EXPECT_EQ(described.count, 5);
  EXPECT_DOUBLE_EQ(described.mean, 32);
  EXPECT_NEAR(described.deviation, 12.884098726725126, 1e-12);
  EXPECT_DOUBLE_EQ(described.p50, 35);
  EXPECT_DOUBLE_EQ(described.p90, 46);
  EXPECT_DOUBLE_EQ(described.p95, 48);
  EXPECT_NEAR(described.p99, 49.6, 1e-12);
  EXPECT_NEAR(described.p999, 49.96, 1e-12);
  EXPECT_DOUBLE_EQ(described.max, 50);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.4), 29);
  EXPECT_DOUBLE_EQ(Quantile(std::vector<double>{7}, 0.999), 7);
  std::vector<double> none;
  EXPECT_EQ(Describe(&none).count, 0);
}

TEST(MeasuresTest, CountsFromTheMomentItWasToBeSent) {
  Outcome outcome = Completed(1.0, {1.5, 1.6, 1.9});
  outcome.sent = 1.4;  // the generator was delayed
  outcome.has_usage = true;
  outcome.queue = 0.02;
  const Measures measures = Measure({&outcome, 1}, {});
  EXPECT_NEAR(measures.ttft.mean, 500, 1e-9);
  EXPECT_NEAR(measures.e2el.mean, 900, 1e-9);
  EXPECT_NEAR(measures.tpot.mean, 200, 1e-9);
  EXPECT_EQ(measures.itl.count, 2);
  EXPECT_NEAR(measures.itl.max, 300, 1e-9);
  EXPECT_NEAR(measures.lateness.mean, 400, 1e-9);
  EXPECT_NEAR(measures.queue.mean, 20, 1e-9);
  EXPECT_DOUBLE_EQ(measures.seconds, 1.9);
  EXPECT_NEAR(measures.OutputThroughput(), 3 / 1.9, 1e-9);
}

TEST(MeasuresTest, CacheHitsAndMissesAreDistinguished) {
  std::vector<Outcome> outcomes = {Completed(0.0, {0.5}), Completed(0.0, {0.1}),
                                   Completed(0.0, {0.3}), Completed(0.0, {9.0}),
                                   Completed(0.0, {5.0})};
  for (Outcome& outcome : outcomes) outcome.input_tokens = 100;
  outcomes[0].cached_tokens = 0;
  outcomes[1].cached_tokens = 80;
  outcomes[2].cached_tokens = 40;
  outcomes[3].cached_tokens = 100;
  outcomes[3].ending = Ending::kFailed;
  const Measures measures = Measure(outcomes, {});
  EXPECT_EQ(measures.hits, 2);
  EXPECT_EQ(measures.cached_tokens, 120);
  EXPECT_NEAR(measures.CacheHitRate(), 0.3, 1e-9) << "of 400 that were completed";
  EXPECT_EQ(measures.ttft_hit.count, 2);
  EXPECT_NEAR(measures.ttft_hit.mean, 200, 1e-9);
  EXPECT_EQ(measures.ttft_miss.count, 1) << "the last one reports no cached tokens";
  EXPECT_NEAR(measures.ttft_miss.mean, 500, 1e-9);
}

TEST(MeasuresTest, SeveralTokensInAMessageAreOneGap) {
  Outcome outcome = Completed(0.0, {1.0, 2.0});
  outcome.messages[1].tokens = 4;
  const Measures measures = Measure({&outcome, 1}, {});
  EXPECT_EQ(measures.output_tokens, 5);
  EXPECT_EQ(measures.itl.count, 1);
  EXPECT_NEAR(measures.tpot.mean, 250, 1e-9);
  EXPECT_DOUBLE_EQ(measures.tokens_per_message.mean, 2.5);
}

TEST(MeasuresTest, EndingsAreDistinguished) {
  std::vector<Outcome> outcomes = {Completed(0.0, {1.0}), Completed(0.5, {1.0}),
                                   Completed(1.0, {2.0, 3.0}), Completed(1.5, {4.0}),
                                   Completed(2.0, {4.5})};
  outcomes[1].ending = Ending::kFailed;
  outcomes[1].status = "RESOURCE_EXHAUSTED";
  outcomes[1].reason = "QUEUE_FULL";
  outcomes[2].ending = Ending::kFault;
  outcomes[3].ending = Ending::kUnfinished;
  outcomes[4].arm = 1;
  Measures measures = Measure(outcomes, {});
  EXPECT_EQ(measures.requests, 5);
  EXPECT_EQ(measures.completed, 2);
  EXPECT_EQ(measures.failed, 1);
  EXPECT_EQ(measures.faults, 1);
  EXPECT_EQ(measures.unfinished, 1);
  EXPECT_THAT(measures.errors, UnorderedElementsAre(Pair("RESOURCE_EXHAUSTED QUEUE_FULL", 1)));
  EXPECT_EQ(measures.output_tokens, 6) << "whatever became of them";
  EXPECT_EQ(measures.ttft.count, 2) << "of completed ones";
  EXPECT_EQ(Measure(outcomes, {}, 1).requests, 1);
  measures = Measure(outcomes, {}, -1, 1.5);
  EXPECT_EQ(measures.requests, 2) << "the others were warm-up";
  EXPECT_DOUBLE_EQ(measures.seconds, 3.0);
}

TEST(ObjectivesTest, AllOfThemHaveToBeMet) {
  const Objectives objectives = *Objectives::Parse("ttft:500 tpot:151,itl:250");
  EXPECT_TRUE(objectives.MetBy(Completed(0.0, {0.5, 0.6, 0.8})));
  EXPECT_FALSE(objectives.MetBy(Completed(0.0, {0.51, 0.6}))) << "ttft";
  EXPECT_FALSE(objectives.MetBy(Completed(0.0, {0.1, 0.3, 0.5}))) << "tpot";
  EXPECT_FALSE(objectives.MetBy(Completed(0.0, {0.1, 0.11, 0.12, 0.38}))) << "itl";
  EXPECT_TRUE(objectives.MetBy(Completed(0.0, {0.4}))) << "one token has no gap";
  EXPECT_TRUE(Objectives().MetBy(Completed(0.0, {100})));
  EXPECT_FALSE(objectives.MetBy(Outcome())) << "no token came";
  for (const char* bad : {"ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:nan", "p99:5", "ttft=5"})
    EXPECT_THAT(std::string(Objectives::Parse(bad).status().message()), HasSubstr("goodput: '"))
        << bad;
}

}  // namespace
}  // namespace hydrant::load
