// Results against sums done by hand, and a run that is stopped and goes on.
#include "eval/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "eval/report.h"

namespace hydrant {
namespace {

using ::testing::HasSubstr;

class ResultsTest : public ::testing::Test {
 protected:
  ~ResultsTest() override { std::remove(path_.c_str()); }
  Results Open(int seed = 1) {
    auto results = Results::Open(path_, {{"seed", seed}});
    EXPECT_TRUE(results.ok()) << results.status();
    return *std::move(results);
  }
  static Measured Of(int number, const std::string& arm, double budget, double nll,
                     double found = 0) {
    Measured measured;
    measured.task = "perplexity";
    measured.number = number;
    measured.arm = arm;
    measured.budget = budget;
    measured.nll = nll;
    measured.found = found;
    measured.kept = {number, 7};
    return measured;
  }

  const std::string path_ = ::testing::TempDir() + "/results_test.jsonl";
};

TEST(Estimate, IsTheMeanWithItsInterval) {
  // Mean 2, deviation 1, of 4: 1.96 / 2.
  const Estimate estimate = EstimateOf({1, 2, 2, 3});
  EXPECT_EQ(estimate.count, 4);
  EXPECT_DOUBLE_EQ(estimate.mean, 2.0);
  EXPECT_NEAR(estimate.half_width, 1.96 * std::sqrt(2.0 / 3) / 2, 1e-12);
  EXPECT_EQ(EstimateOf({5}).half_width, 0.0);
  EXPECT_EQ(EstimateOf({}).count, 0);
}

TEST_F(ResultsTest, DifferencesArePairedWithTheFullCache) {
  Results results = Open();
  // What an arm loses is .1 and .3; that the second text is harder says nothing of it.
  for (const auto& [number, arm, nll] :
       {std::tuple(0, "full", 2.0), std::tuple(0, "h2o", 2.1), std::tuple(1, "full", 4.0),
        std::tuple(1, "h2o", 4.3), std::tuple(2, "h2o", 9.0)}) {
    const double budget = std::string(arm) == "full" ? 1.0 : 0.2;
    ASSERT_TRUE(results.Add(Of(number, arm, budget, nll)).ok());
  }
  const std::vector<Summary> summaries = results.Summarize();
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_EQ(summaries[0].arm, "h2o");
  EXPECT_EQ(summaries[0].lost.count, 2) << "the third has nothing to be paired with";
  EXPECT_NEAR(summaries[0].lost.mean, 0.2, 1e-12);
  EXPECT_NEAR(summaries[0].lost.half_width, 1.96 * 0.1, 1e-9);
  EXPECT_EQ(summaries[0].kept, (std::vector<double>{0.5, 7}));
}

TEST_F(ResultsTest, WhatTheFullCacheDoesNotFindDoesNotCount) {
  Results results = Open();
  for (int number = 0; number < 3; ++number) {
    Measured full = Of(number, "full", 1.0, 0, number == 2 ? 0.0 : 1.0);
    full.text = "12345";
    ASSERT_TRUE(results.Add(full).ok());
    ASSERT_TRUE(results.Add(Of(number, "h2o", 0.2, 0, number == 1 ? 0.0 : 1.0)).ok());
  }
  const std::vector<Summary> summaries = results.Summarize();
  EXPECT_TRUE(summaries[0].retrieval);
  EXPECT_EQ(summaries[0].found.count, 2);
  EXPECT_DOUBLE_EQ(summaries[0].found.mean, 0.5);
  EXPECT_THAT(TextReport(summaries), HasSubstr("| h2o | 50 % of 2 |"));
}

TEST_F(ResultsTest, GoesOnWhereItWas) {
  {
    Results results = Open();
    ASSERT_TRUE(results.Add(Of(0, "full", 1.0, 2.0)).ok());
    ASSERT_TRUE(results.Add(Of(0, "h2o", 0.1, 2.5)).ok());
  }
  std::ofstream(path_, std::ios::app) << R"({"task": "perplexity", "case": 0, "arm": "lo)";
  {
    Results again = Open();
    EXPECT_TRUE(again.Has("perplexity", 0, "h2o", 0.1));
    EXPECT_FALSE(again.Has("perplexity", 0, "local", 0.1)) << "its line was not finished";
    EXPECT_FALSE(again.Has("perplexity", 0, "h2o", 0.2));
    ASSERT_TRUE(again.Add(Of(1, "full", 1.0, 3.0)).ok());
  }
  EXPECT_TRUE(Open().Has("perplexity", 1, "full", 1.0)) << "written behind the unfinished line";
  EXPECT_NEAR(Open().Summarize()[0].lost.mean, 0.5, 1e-12);
  const auto other = Results::Open(path_, {{"seed", 2}});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("other settings"));
  EXPECT_FALSE(Results::Open("/nowhere/results.jsonl", {{"seed", 1}}).ok());
}

TEST(Report, HoldsTheDataAndNothingBreaksOut) {
  Summary summary;
  summary.task = "perplexity";
  summary.arm = "</script>h2o";
  summary.budget = 0.2;
  summary.kept = {3, 4};
  const std::string page =
      HtmlReport({.title = "a", .settings = "b", .complete = false}, {summary});
  EXPECT_THAT(page, HasSubstr(R"("arm":"<\/script>h2o")"));
  EXPECT_EQ(page.find("/*DATA*/"), std::string::npos);
  EXPECT_EQ(page.find("http://", page.find("2000/svg") + 1), std::string::npos)
      << "a page needs nothing else";
  EXPECT_THAT(CsvReport({summary}), HasSubstr("perplexity,\"</script>h2o\",0.2,0,"));
}

}  // namespace
}  // namespace hydrant
