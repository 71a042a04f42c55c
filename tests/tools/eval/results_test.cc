// Compares results with sums by hand, and resumes an interrupted run.
#include "tools/eval/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>

#include "tools/eval/report.h"
#include "tools/eval/winners.h"

namespace hydrant::eval {
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
  static CaseResult Of(int number, const std::string& arm, double budget, double nll,
                       double found = 0) {
    CaseResult measured;
    measured.task = "perplexity";
    measured.number = number;
    measured.arm = arm;
    measured.budget = budget;
    measured.nll = nll;
    measured.found = found;
    measured.kept = {number, 7};
    return measured;
  }

  static CaseResult Retrieved(CaseResult measured) {
    measured.retrieval = true;
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

TEST_F(ResultsTest, TheBestOfEachBudgetIsMarked) {
  Results results = Open();
  for (const auto& [arm, budget, nll] :
       {std::tuple("full", 1.0, 2.0), std::tuple("oracle", 0.1, 2.0), std::tuple("h2o", 0.1, 2.5),
        std::tuple("echo", 0.1, 2.1), std::tuple("h2o", 0.4, 2.1), std::tuple("echo", 0.4, 2.2),
        std::tuple("snapkv", 0.6, 2.1)}) {
    ASSERT_TRUE(results.Add(Of(0, arm, budget, nll)).ok());
  }
  std::vector<std::string> best;
  for (const Summary& summary : results.Summarize()) {
    if (summary.best)
      best.push_back(summary.arm + " " + std::to_string(summary.budget).substr(0, 3));
  }
  EXPECT_THAT(best, ::testing::ElementsAre("echo 0.1", "h2o 0.4"))
      << "alone at a budget an arm is no winner, and the oracle is none";
  const std::string text = TextReport(results.Summarize());
  EXPECT_THAT(text, HasSubstr("| echo | **0.100 ±0.000** | 0.200 ±0.000 |"));
  EXPECT_EQ(results.Summarize()[0].KeptMean(), 3.5) << "heads with 0 and 7 entries";
}

TEST_F(ResultsTest, DifferencesArePairedWithTheFullCache) {
  Results results = Open();
  // The arm loses .1 and .3; that the second text is harder does not count.
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

TEST_F(ResultsTest, CasesThatTheFullCacheMissesDoNotCount) {
  Results results = Open();
  for (int number = 0; number < 3; ++number) {
    CaseResult full = Of(number, "full", 1.0, 0, number == 2 ? 0.0 : 1.0);
    ASSERT_TRUE(results.Add(Retrieved(full)).ok());
    ASSERT_TRUE(results.Add(Retrieved(Of(number, "h2o", 0.2, 0, number == 1 ? 0.0 : 1.0))).ok());
  }
  const std::vector<Summary> summaries = results.Summarize();
  EXPECT_TRUE(summaries[0].retrieval);
  EXPECT_EQ(summaries[0].found.count, 2);
  EXPECT_DOUBLE_EQ(summaries[0].found.mean, 0.5);
  EXPECT_THAT(TextReport(summaries), HasSubstr("| h2o | 50 % of 2 |"));
}

// Three questions of one case and one of another: cases count alike, and a question that the full
// cache misses does not count.
TEST_F(ResultsTest, QuestionsOfACaseCountAsOne) {
  Results results = Open();
  const auto add = [&](int number, int question, bool full, bool found) {
    for (const bool of_full : {true, false}) {
      CaseResult measured = Of(number, of_full ? "full" : "h2o", of_full ? 1.0 : 0.2, 0,
                               (of_full ? full : found) ? 1.0 : 0.0);
      measured.question = question;
      ASSERT_TRUE(results.Add(Retrieved(measured)).ok());
    }
  };
  add(0, 0, true, true);
  add(0, 1, true, false);
  add(0, 2, false, true);
  add(1, 0, true, true);
  const std::vector<Summary> summaries = results.Summarize();
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_EQ(summaries[0].found.count, 2);
  EXPECT_EQ(summaries[0].questions, 3);
  EXPECT_DOUBLE_EQ(summaries[0].found.mean, (0.5 + 1.0) / 2);
  EXPECT_TRUE(Open().Has("perplexity", 0, 2, "h2o", 0.2)) << "each has its own line";
}

// Found by the place of the fact, over all tasks; questions without a place are left out.
TEST_F(ResultsTest, PlacesAreThirdsOfTheContext) {
  Results results = Open();
  const auto add = [&](const std::string& task, int number, double depth, bool found) {
    for (const bool of_full : {true, false}) {
      CaseResult measured = Of(number, of_full ? "full" : "h2o", of_full ? 1.0 : 0.2, 0,
                               of_full || found ? 1.0 : 0.0);
      measured.task = task;
      measured.depth = depth;
      ASSERT_TRUE(results.Add(Retrieved(measured)).ok());
    }
  };
  add("facts", 0, 0.0, true);
  add("facts", 1, 0.33, true);
  add("needle", 2, 0.1, false);
  add("needle", 3, 0.34, true);
  add("needle", 4, 1.0, false);
  add("needle", 5, -1, true);
  const std::vector<Summary> summaries = results.SummarizeByPlace();
  ASSERT_EQ(summaries.size(), 3u);
  const std::vector<std::tuple<std::string, int, double>> expected = {
      {"first third", 3, 2.0 / 3}, {"middle third", 1, 1.0}, {"last third", 1, 0.0}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [place, questions, found] = expected[i];
    EXPECT_EQ(summaries[i].task, place);
    EXPECT_EQ(summaries[i].questions, questions) << place;
    EXPECT_DOUBLE_EQ(summaries[i].found.mean, found) << place;
  }
  EXPECT_EQ(results.Summarize().size(), 2u);
}

// Losses of two arms on the same texts, and on others that only one of them has.
TEST_F(ResultsTest, ArmsAreComparedOverTheCasesThatBothHave) {
  Results results = Open();
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> nats(2, 4);
  const auto add = [&](int number, const char* arm, double budget, double nll) {
    EXPECT_TRUE(results.Add(Of(number, arm, budget, nll)).ok());
    return nll;
  };
  std::vector<double> more;
  for (int number = 0; number < 9; ++number) {
    const double full = add(number, "full", 1.0, nats(rng));
    const double snapkv = add(number, "snapkv", 0.2, full + nats(rng));
    add(number, "snapkv", 0.1, 50);
    if (number % 4 != 0) more.push_back(add(number, "h2o", 0.2, full + nats(rng)) - snapkv);
  }
  add(20, "h2o", 0.2, 1000);  // without a full cache
  add(20, "snapkv", 0.2, 1);

  const std::vector<Difference> differences = results.Compare({"snapkv", "h2o"});
  ASSERT_EQ(differences.size(), 2u) << "at 10 % there is snapkv alone";
  double mean = 0, squares = 0;
  for (const double value : more) mean += value / 6;
  for (const double value : more) squares += (value - mean) * (value - mean);
  EXPECT_EQ(differences[0].against, "snapkv");
  EXPECT_EQ(differences[0].arm, "h2o");
  EXPECT_EQ(differences[0].budget, 0.2);
  EXPECT_EQ(differences[0].more.count, 6);
  EXPECT_NEAR(differences[0].more.mean, mean, 1e-12);
  EXPECT_NEAR(differences[0].more.half_width, 1.96 * std::sqrt(squares / 5 / 6), 1e-12);
  EXPECT_EQ(differences[1].against, "h2o");
  EXPECT_EQ(differences[1].arm, "snapkv");
  EXPECT_NEAR(differences[1].more.mean, -mean, 1e-12);
}

TEST_F(ResultsTest, FoundIsComparedOverTheFullCachesFinds) {
  Results results = Open();
  for (int number = 0; number < 5; ++number) {
    CaseResult full = Of(number, "full", 1.0, 0, number == 0 ? 0.0 : 0.5);
    ASSERT_TRUE(results.Add(Retrieved(full)).ok());
    const auto add = [&](const char* arm, bool found) {
      ASSERT_TRUE(results.Add(Retrieved(Of(number, arm, 0.2, 0, found ? 0.5 : 0.0))).ok());
    };
    add("h2o", number < 2);
    add("kvpress:TOVAPress", number > 2);
  }
  const std::vector<Difference> differences = results.Compare({"h2o"});
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].arm, "kvpress:TOVAPress");
  EXPECT_EQ(differences[0].more.count, 4);
  EXPECT_DOUBLE_EQ(differences[0].more.mean, (-1 + 0 + 1 + 1) / 4.0);
}

TEST(DifferenceTest, ClearIsBeyondTheInterval) {
  const auto of = [](bool retrieval, int count, double mean, double half_width) {
    return Difference{"task", "a", "b", 0.2, retrieval, {count, mean, half_width}};
  };
  EXPECT_TRUE(of(false, 5, -0.2, 0.1).IsBetter()) << "fewer nats";
  EXPECT_TRUE(of(false, 5, 0.2, 0.1).IsWorse());
  EXPECT_TRUE(of(true, 5, 0.2, 0.1).IsBetter()) << "more found";
  EXPECT_TRUE(of(true, 5, -0.2, 0.1).IsWorse());
  for (const Difference& unclear :
       {of(false, 5, 0.1, 0.2), of(true, 5, -0.1, 0.1), of(true, 4, 1, 0), of(true, 5, 0, 0)}) {
    EXPECT_FALSE(unclear.IsBetter() || unclear.IsWorse()) << unclear.more.mean;
  }
}

constexpr char kForeign[] =
    R"({"arm": "kvpress:SnapKVPress", "task": "perplexity", "case": 0, "question": 0, "budget": 0.1, "nll": 2.75,)"
    R"( "agreement": 0.5, "divergence": 0, "retrieval": false, "found": 0, "depth": -1, "text": "", "entries": 9, "kept": [4, 5],)"
    R"( "retained_mass": 0.25})";

TEST_F(ResultsTest, RowsOfOthersAreReadAsOurs) {
  ASSERT_TRUE(Open().Add(Of(0, "full", 1.0, 2.5)).ok());
  std::ofstream(path_, std::ios::app) << kForeign << "\n";
  const std::vector<Summary> summaries = Open().Summarize();
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_EQ(summaries[0].arm, "kvpress:SnapKVPress");
  EXPECT_DOUBLE_EQ(summaries[0].lost.mean, 0.25);
  EXPECT_DOUBLE_EQ(summaries[0].retained_mass.mean, 0.25);
  EXPECT_EQ(summaries[0].kept, (std::vector<double>{4, 5}));
}

TEST_F(ResultsTest, OtherJsonIsNamed) {
  const auto said = [&](const std::string& line) {
    std::remove(path_.c_str());
    EXPECT_TRUE(Open().Add(Of(0, "full", 1.0, 2.5)).ok());
    std::ofstream(path_, std::ios::app) << line << "\n" << kForeign << "\n";
    const auto results = Results::Open(path_, {{"seed", 1}});
    EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument) << line;
    return std::string(results.status().message());
  };
  const auto without = [](const std::string& field, const std::string& instead) {
    std::string line = kForeign;
    const size_t at = line.find(field);
    return line.replace(at, field.size(), instead);
  };
  EXPECT_THAT(said("so be it"), HasSubstr("results_test.jsonl, line 3: not a JSON object"));
  EXPECT_THAT(said("[1, 2]"), HasSubstr("line 3: not a JSON object"));
  EXPECT_THAT(said(without("\"nll\"", "\"ppl\"")), HasSubstr("line 3: nll is missing"));
  EXPECT_THAT(said(without("2.75", "\"low\"")), HasSubstr("line 3: nll: \"low\""));
  EXPECT_THAT(said(without("[4, 5]", "9")), HasSubstr("line 3: kept: 9"));
  EXPECT_THAT(said(without("\"perplexity\"", "3")), HasSubstr("line 3: task: 3"));
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
    EXPECT_TRUE(again.Has("perplexity", 0, 0, "h2o", 0.1));
    EXPECT_FALSE(again.Has("perplexity", 0, 0, "local", 0.1)) << "its line was not finished";
    EXPECT_FALSE(again.Has("perplexity", 0, 0, "h2o", 0.2));
    ASSERT_TRUE(again.Add(Of(1, "full", 1.0, 3.0)).ok());
  }
  EXPECT_TRUE(Open().Has("perplexity", 1, 0, "full", 1.0))
      << "written in the unfinished line's place";
  EXPECT_NEAR(Open().Summarize()[0].lost.mean, 0.5, 1e-12);
  const auto other = Results::Open(path_, {{"seed", 2}});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("other settings"));
  EXPECT_FALSE(Results::Open("/nowhere/results.jsonl", {{"seed", 1}}).ok());
}

// A text without a line end, and lines of another format with an incomplete last line.
TEST_F(ResultsTest, AFileOfAnotherKindIsLeftAsItIs) {
  for (const std::string text : {"a thesis", "a thesis\nwithout an end"}) {
    std::ofstream(path_) << text;
    EXPECT_EQ(Results::Open(path_, {{"seed", 1}}).status().code(),
              absl::StatusCode::kFailedPrecondition);
    std::ifstream file(path_);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  }
  // A results file with a truncated first line.
  std::ofstream(path_) << R"({"se)";
  EXPECT_TRUE(Results::Open(path_, {{"seed", 1}}).ok());
}

TEST_F(ResultsTest, TheWinnerIsAheadOverAllTasks) {
  Results results = Open();
  const auto add = [&](const std::string& task, int number, const std::string& arm, double found) {
    CaseResult measured = Retrieved(Of(number, arm, arm == "full" ? 1.0 : 0.1, 2.0, found));
    measured.task = task;
    ASSERT_TRUE(results.Add(measured).ok());
  };
  // Paired leads of `echo` before `h2o`: .5 and 1 on facts, 0 and .5 on needles. `snapkv` is ahead of
  // both on the only task that it has.
  for (const auto& [task, number, echo, h2o] :
       {std::tuple("facts", 0, 1.0, 0.5), std::tuple("facts", 1, 1.0, 0.0),
        std::tuple("needles", 0, 0.5, 0.5), std::tuple("needles", 1, 1.0, 0.5)}) {
    add(task, number, "full", 1);
    add(task, number, "h2o", h2o);
    add(task, number, "echo", echo);
    add(task, number, "oracle", 1);
  }
  for (const int number : {0, 1}) add("facts", number, "snapkv", 1);
  const std::vector<Winner> winners = WinnersOf(results);
  ASSERT_EQ(winners.size(), 1u);
  EXPECT_EQ(winners[0].arm, "echo");
  EXPECT_EQ(winners[0].next, "h2o");
  EXPECT_DOUBLE_EQ(winners[0].score, (1.0 + 0.75) / 2);
  EXPECT_DOUBLE_EQ(winners[0].lead, (0.75 + 0.25) / 2);
  // Both tasks have a deviation of 1 / sqrt(8) over two cases.
  EXPECT_NEAR(winners[0].half_width, 1.96 * 0.25 * std::sqrt(2) / 2, 1e-12);
  EXPECT_EQ(Sentence(winners[0]),
            "At 10 % of the cache echo finds 88 % of what the full cache finds, 50 ±35 points more "
            "than h2o, the next.");
}

TEST_F(ResultsTest, AWinnerOfNatsLosesLeast) {
  Results results = Open();
  for (const int number : {0, 1, 2}) {
    for (const auto& [arm, budget, nll] :
         {std::tuple("full", 1.0, 2.0), std::tuple("h2o", 0.2, 2.25 + number),
          std::tuple("echo", 0.2, 2.125)})
      ASSERT_TRUE(results.Add(Of(number, arm, budget, nll)).ok());
  }
  const std::vector<Winner> winners = WinnersOf(results);
  ASSERT_EQ(winners.size(), 1u);
  EXPECT_FALSE(winners[0].IsClear());
  EXPECT_THAT(Sentence(winners[0]),
              ::testing::StartsWith("At 20 % of the cache echo loses least, 0.125 nats a token, "));
  EXPECT_THAT(Sentence(winners[0]),
              ::testing::EndsWith("h2o, the next; these cases do not tell the two apart."));
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

TEST(Report, MarksClearDifferences) {
  const std::vector<Difference> differences = {
      {"perplexity", "a", "base", 0.1, false, {5, -0.25, 0.125}},
      {"perplexity", "a", "base", 0.2, false, {5, -0.25, 0.5}},
      {"perplexity", "b", "base", 0.2, false, {5, 0.25, 0.125}},
      {"needle", "</script>", "base", 0.1, true, {5, 0.25, 0.125}}};
  const std::string text = TextReport(differences);
  EXPECT_THAT(text, HasSubstr("perplexity: nats a token more than base"));
  EXPECT_THAT(text, HasSubstr("| a | **-0.250 ±0.125** | -0.250 ±0.500 |"));
  EXPECT_THAT(text, HasSubstr("| b | - | *+0.250 ±0.125* |"));
  EXPECT_THAT(text, HasSubstr("needle: found more than base"));
  EXPECT_THAT(text, HasSubstr("| **+25 ±12 %** |"));
  const std::string csv = CsvReport(differences);
  EXPECT_THAT(csv, HasSubstr("perplexity,\"a\",\"base\",0.1,5,-0.25000,0.12500,better\n"));
  EXPECT_THAT(csv, HasSubstr("0.2,5,-0.25000,0.50000,\n"));
  EXPECT_THAT(csv, HasSubstr("0.2,5,0.25000,0.12500,worse\n"));
  const std::string page = HtmlReport({}, {}, differences);
  EXPECT_THAT(page, HasSubstr(R"("arm":"<\/script>")"));
  EXPECT_THAT(page, HasSubstr(R"("verdict":"better")"));
  EXPECT_TRUE(TextReport(std::vector<Difference>()).empty());
}

}  // namespace
}  // namespace hydrant::eval
