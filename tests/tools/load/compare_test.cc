#include "tools/load/report/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/load/report/report_file.h"

namespace hydrant::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Optional;
using testing::Pair;
using testing::UnorderedElementsAre;

// Output of `vllm bench serve --save-result` in 2025, shortened.
constexpr char kVllm[] =
    R"({"date": "20250612-101010", "endpoint_type": "vllm", "label": null, "model_id": "m",
 "num_prompts": 400, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": null, "duration": 20.0, "completed": 398,
 "total_input_tokens": 25600, "total_output_tokens": 9500, "request_throughput": 20.0, "request_goodput:": 12.5,
 "output_throughput": 475.0, "total_token_throughput": 1755.0, "mean_ttft_ms": 33.0, "median_ttft_ms": 20.0, "std_ttft_ms": 3.0,
 "p99_ttft_ms": 60.0, "p75_ttft_ms": 40.0, "mean_tpot_ms": 0.0, "median_tpot_ms": 0.0, "p99_tpot_ms": 0.0,
 "errors": ["", "Traceback (most recent call last):\n  File x\naiohttp.ClientError: gone\n", ""], "ttfts": [0.02]})";

ReportFile Parse(const nlohmann::json& json, const std::string& path = "b.json") {
  auto report = ParseReport(json.dump(), path);
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}

nlohmann::json Ours(double throughput, double p99_ttft) {
  return {{"label", "ours"},
          {"request_rate", "4"},
          {"completed", 10},
          {"failed", 0},
          {"duration", 5.0},
          {"request_throughput", 2.0},
          {"output_throughput", throughput},
          {"p99_ttft_ms", p99_ttft},
          {"max_ttft_ms", 70},
          {"mean_ttft_ms", 30},
          {"error_counts", {{"INTERNAL", 1}}},
          {"options", {{"--input-len", "5"}, {"--json", "x"}}},
          {"arms", {{{"name", "full"}, {"output_throughput", throughput / 2}}}}};
}

TEST(ReportFileTest, ReadsVllmReports) {
  const auto report = ParseReport(kVllm, "vllm.json");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->name, "vllm.json");
  EXPECT_TRUE(report->complete);
  EXPECT_EQ(report->figures.at("request_goodput"), 12.5);
  EXPECT_EQ(report->figures.at("failed"), 2) << "what is missing of those sent";
  EXPECT_EQ(report->figures.count("p99_tpot_ms"), 0u) << "zeros stand for nothing measured";
  EXPECT_EQ(report->figures.count("mean_tpot_ms"), 0u);
  EXPECT_EQ(report->figures.at("p75_ttft_ms"), 40);
  EXPECT_THAT(report->errors, UnorderedElementsAre(Pair("aiohttp.ClientError: gone", 1)));
  EXPECT_EQ(report->settings.at("model_id"), "m");
  EXPECT_EQ(report->settings.count("duration"), 0u);
  EXPECT_FALSE(nlohmann::json::parse(report->summary).contains("ttfts"));
}

TEST(ReportFileTest, OtherFilesAreNamed) {
  const auto message = [](const char* text) {
    return std::string(ParseReport(text, "a.json").status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("a.json: it is empty"));
  EXPECT_THAT(message("{\n\"a\": 1,\nb}"), HasSubstr("a.json: line 3: not JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("a.json: it is no report"));
  EXPECT_THAT(message("{}"), HasSubstr("a.json: it is no report: completed is missing"));
  EXPECT_THAT(message(R"({"completed": 1, "duration": "x"})"), HasSubstr("duration"));
  EXPECT_THAT(message(R"({"completed": 1, "duration": 1, "arms": [5]})"), HasSubstr("arms"));
  EXPECT_THAT(std::string(ReadReport("/nowhere").status().message()),
              HasSubstr("/nowhere: cannot be read"));
}

const ComparedMeasure& Find(const Comparison& comparison, size_t part, const std::string& name) {
  for (const ComparedMeasure& measure : comparison.parts[part].measures) {
    if (measure.name == name) return measure;
  }
  ADD_FAILURE() << name;
  return comparison.parts[0].measures[0];
}

TEST(CompareTest, RatiosAndWhichIsBetter) {
  const std::vector<ReportFile> reports = {Parse(Ours(100, 50)), Parse(Ours(110, 60)),
                                           *ParseReport(kVllm, "vllm.json")};
  const auto comparison = Compare(reports);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  const ComparedMeasure& throughput = Find(*comparison, 0, "output_throughput");
  EXPECT_THAT(throughput.Ratio(1), Optional(testing::DoubleNear(1.1, 1e-12)));
  EXPECT_THAT(throughput.Ratio(2), Optional(4.75));
  EXPECT_STREQ(throughput.Verdict(1), "better");
  EXPECT_STREQ(Find(*comparison, 0, "p99_ttft_ms").Verdict(1), "worse");
  EXPECT_STREQ(Find(*comparison, 0, "max_ttft_ms").Verdict(1), "");
  EXPECT_FALSE(Find(*comparison, 0, "max_ttft_ms").Ratio(2).has_value()) << "vllm has none";
  EXPECT_EQ(Find(*comparison, 0, "failed").WorseBy(2), std::numeric_limits<double>::infinity());
  EXPECT_EQ(comparison->parts.size(), 1u) << "not all have the arm";
  // In this order: the rates, then the times, means first.
  std::vector<std::string> names;
  for (const ComparedMeasure& measure : comparison->parts[0].measures)
    names.push_back(measure.name);
  EXPECT_THAT(names, ElementsAre("request_throughput", "output_throughput", "failed",
                                 "mean_ttft_ms", "p99_ttft_ms", "max_ttft_ms"));
  EXPECT_THAT(comparison->errors[0].counts, ElementsAre(1, 1, 0));
  EXPECT_THAT(comparison->errors[1].counts, ElementsAre(0, 0, 1));
}

TEST(CompareTest, ArmsAndSettings) {
  nlohmann::json other = Ours(200, 50);
  other["options"]["--input-len"] = "6";
  other["options"]["--json"] = "y";
  other["complete"] = false;
  const auto comparison = Compare(std::vector<ReportFile>{Parse(Ours(100, 50)), Parse(other)});
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  ASSERT_EQ(comparison->parts.size(), 2u);
  EXPECT_EQ(comparison->parts[1].title, "full");
  EXPECT_THAT(Find(*comparison, 1, "output_throughput").Ratio(1), Optional(2.0));
  ASSERT_EQ(comparison->settings.size(), 1u) << "where a report is written is no setting";
  EXPECT_EQ(comparison->settings[0].name, "--input-len");
  EXPECT_THAT(comparison->settings[0].values,
              ElementsAre(Optional(std::string("5")), Optional(std::string("6"))));
  const std::string text = ToText(*comparison);
  EXPECT_THAT(text, HasSubstr("PARTIAL: ours was broken off."));
  EXPECT_THAT(text, HasSubstr("x2.000 better"));
  EXPECT_THAT(text, HasSubstr("'5' '6'"));
}

// A run with prefix cache hits is faster for that reason, so the comparison warns.
TEST(CompareTest, WarnsWhereOneFoundItsPromptsInACache) {
  const auto with = [](double rate) {
    nlohmann::json report = Ours(100, 50);
    report["cache_hit_rate"] = rate;
    report["label"] = rate > 0.5 ? "warm" : "cold";
    return Parse(report);
  };
  const auto comparison = Compare(std::vector<ReportFile>{with(0.0), with(0.96)});
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  const ComparedMeasure& rate = Find(*comparison, 0, "cache_hit_rate");
  EXPECT_STREQ(rate.Verdict(1), "") << "neither is better";
  EXPECT_TRUE(comparison->settings.empty()) << "what was found is no setting";
  EXPECT_THAT(ToText(*comparison),
              HasSubstr("WARNING: the prefix cache had 96.0 % of the prompts of warm, and 0.0 % of "
                        "cold"));
  EXPECT_THAT(ToJson(*comparison, {}), HasSubstr("\"warning\": \"the prefix cache had"));
  const auto alike = Compare(std::vector<ReportFile>{with(0.91), with(0.95)});
  EXPECT_THAT(ToText(*alike), testing::Not(HasSubstr("WARNING")));
}

TEST(CompareTest, LimitsOfABuild) {
  const auto worse = [](double throughput, double ttft, const char* limits) {
    const auto comparison =
        Compare(std::vector<ReportFile>{Parse(Ours(100, 50)), Parse(Ours(throughput, ttft))});
    const auto lines = FindWorse(*comparison, *ParseLimits(limits));
    EXPECT_TRUE(lines.ok()) << lines.status();
    return *lines;
  };
  EXPECT_THAT(worse(91, 54, "10%"), IsEmpty());
  EXPECT_THAT(
      worse(89, 54, "10%"),
      ElementsAre(
          "output_throughput of ours is 89 against 100: worse by 11.0 %, and 10 % are allowed"));
  EXPECT_THAT(worse(89, 54, "p99_ttft_ms:10%"), IsEmpty());
  EXPECT_THAT(worse(150, 56, "p99_ttft_ms:10%, output_throughput:0%"),
              ElementsAre(HasSubstr("p99_ttft_ms")));
  EXPECT_THAT(worse(1, 1000, ""), IsEmpty());
}

TEST(CompareTest, IncomparableReportsAreAnError) {
  const auto comparison =
      Compare(std::vector<ReportFile>{Parse(Ours(100, 50)), *ParseReport(kVllm, "vllm.json")});
  const auto lines = FindWorse(*comparison, *ParseLimits("max_ttft_ms:5%"));
  EXPECT_THAT(std::string(lines.status().message()),
              HasSubstr("max_ttft_ms is not in both ours and vllm.json"));
  for (const char* bad : {"10", "x%", ":10%", "p99_ttft_ms:", "-1%", "nan%"})
    EXPECT_THAT(std::string(ParseLimits(bad).status().message()), HasSubstr("fail-if-worse: '"))
        << bad;
}

nlohmann::json SweepOf(const std::string& arm, double rate) {
  return {{"kind", "sweep"},
          {"arms",
           {{{"name", arm},
             {"highest_rate", rate},
             {"points",
              {{{"rate", rate},
                {"met", true},
                {"output_throughput", 7 * rate},
                {"p99_ttft_ms", 5.0},
                {"p99_ttft_ms", 5}}}}}}}};
}

TEST(CompareTest, SweepsByTheRateTheyBear) {
  auto comparison =
      Compare(std::vector<ReportFile>{Parse(SweepOf("full", 2)), Parse(SweepOf("full", 5))});
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_THAT(Find(*comparison, 0, "highest_rate").Ratio(1), Optional(2.5));
  EXPECT_THAT(Find(*comparison, 0, "output_throughput").values,
              ElementsAre(Optional(14.0), Optional(35.0)));
  EXPECT_EQ(comparison->parts[0].measures.size(), 2u) << "latencies are those of different rates";
  EXPECT_THAT(*FindWorse(*comparison, *ParseLimits("10%")), IsEmpty());
  comparison =
      Compare(std::vector<ReportFile>{Parse(SweepOf("full", 5)), Parse(SweepOf("h2o", 2))});
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_THAT(*FindWorse(*comparison, *ParseLimits("10%")),
              testing::Contains(HasSubstr("highest_rate of b.json is 2 against 5")));
  const auto mixed = Compare(std::vector<ReportFile>{Parse(SweepOf("full", 2)), Parse(Ours(1, 1))});
  EXPECT_THAT(std::string(mixed.status().message()), HasSubstr("a run and a sweep"));
}

}  // namespace
}  // namespace hydrant::load
