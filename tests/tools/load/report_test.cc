#include "tools/load/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/tools/load/outcomes.h"
#include "tools/load/report/report_file.h"
#include "tools/load/report/write_file.h"

namespace hydrant::load {
namespace {

using testing::HasSubstr;
using testing::Not;

using Json = nlohmann::json;

RunDescription Description() {
  RunDescription run{.model = "model", .date = "20250101-000000", .request_rate = "4"};
  run.num_prompts = 3;
  run.arms = {"full", "h2o:cache_ratio=0.2"};
  run.metadata = {{"--input-len", "10"}};
  return run;
}

std::vector<Outcome> Outcomes() {
  std::vector<Outcome> outcomes = {Completed(0.0, {1.0, 1.5}), Completed(1.0, {1.5, 1.75, 2.0}, 1),
                                   Failed(1.0, 2.0, "QUEUE_FULL", "no place")};
  for (size_t i = 0; i < outcomes.size(); ++i) outcomes[i].index = static_cast<int64_t>(i);
  return outcomes;
}

// The content of a page is its data, a single JSON object.
Json DataOf(const std::string& page) {
  const std::string opens = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(opens) + opens.size(), end = page.find("</script>", begin);
  EXPECT_NE(end, std::string::npos);
  return Json::parse(page.substr(begin, end - begin));
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

// The keys read by scripts around `vllm bench serve`.
TEST(ReportTest, HasTheKeysOfVllmBenchServe) {
  const Json json = Json::parse(ToJson(Description(), Outcomes(), {}, 0.0));
  for (const char* key : {"date",
                          "endpoint_type",
                          "backend",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "input_lens",
                          "output_lens",
                          "ttfts",
                          "itls",
                          "start_times",
                          "errors"})
    EXPECT_TRUE(json.contains(key)) << key;
  for (const char* kind : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* quantile : {"mean", "median", "std", "p99"})
      EXPECT_TRUE(json.contains(std::string(quantile) + "_" + kind + "_ms")) << quantile << kind;
  }
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["median_ttft_ms"], 750);
  EXPECT_EQ(json["start_times"], Json({0.0, 1.0, 1.0}));
  EXPECT_EQ(json["itls"][1], Json({0.25, 0.25}));
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_EQ(json["arms"][1]["completed"], 1);
}

TEST(ReportTest, ThePageHasTheFiguresAndTheCourse) {
  Objectives objectives;
  objectives.ttft_ms = 600;
  RunDescription run = Description();
  run.quality = {{.arm = "h2o:cache_ratio=0.2",
                  .prompts = 2,
                  .identical = 1,
                  .positions = 10,
                  .before_difference = 6,
                  .matched = 8}};
  const std::string page = ToHtml(run, Outcomes(), objectives, 0.0);
  const Json report = DataOf(page)["runs"][0];
  EXPECT_EQ(report["completed"], 2);
  EXPECT_EQ(report["goodput"], Json({{"ttft", 600}}));
  EXPECT_EQ(report["request_goodput"], 0.5);
  EXPECT_EQ(report["quality"][0]["matched"], 0.8);
  EXPECT_EQ(report["timeline"]["errors"][0]["name"], "RESOURCE_EXHAUSTED QUEUE_FULL");
  EXPECT_EQ(report["timeline"]["due_per_s"].size(),
            report["arms"][1]["timeline"]["due_per_s"].size());
  EXPECT_FALSE(report.contains("itls")) << "a page of a long run has to open";
  EXPECT_EQ(Count(page, "://"), Count(page, "http://www.w3.org/2000/svg")) << "nothing is fetched";
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(ReportTest, ReportsThePoliciesMeanSavings) {
  std::vector<Outcome> outcomes = Outcomes();
  outcomes[1].kv_tokens_kept = 200.5;  // the outcome of arm 1
  outcomes[1].kv_tokens_evicted = 799.5;
  outcomes[1].kv_bytes = 1 << 20;
  outcomes[1].kv_bytes_of_full = 5 << 20;
  const std::string text = ToText(Description(), outcomes, {}, 0.0);
  EXPECT_THAT(text, HasSubstr("KV entries 20.1 % kept, 200 of 1000 a head and request; at their "
                              "ends 1.00 MiB where full would hold 5.00"));
  const Json arm = Json::parse(ToJson(Description(), outcomes, {}, 0.0))["arms"][1];
  EXPECT_EQ(arm["kv_tokens_evicted"], 799.5);
  EXPECT_EQ(arm["kv_bytes_of_full"], 5 << 20);
}

TEST(ReportTest, WarnsWhereAnArmFoundItsPromptsInACache) {
  std::vector<Outcome> outcomes = Outcomes();
  EXPECT_THAT(ToText(Description(), outcomes, {}, 0.0), Not(HasSubstr("WARNING")));
  outcomes[1].cached_tokens = 9;  // of 10 prompt tokens
  EXPECT_THAT(ToText(Description(), outcomes, {}, 0.0),
              HasSubstr("WARNING: the prefix cache had 90.0 % of the prompts of h2o"));
  EXPECT_THAT(DataOf(ToHtml(Description(), outcomes, {}, 0.0))["runs"][0]["warning"].dump(),
              HasSubstr("90.0 %"));
}

TEST(ReportTest, APartialRunSaysSo) {
  RunDescription run = Description();
  run.complete = false;
  EXPECT_THAT(ToText(run, Outcomes(), {}, 0.0), HasSubstr("PARTIAL"));
  EXPECT_EQ(Json::parse(ToJson(run, Outcomes(), {}, 0.0))["complete"], false);
  EXPECT_EQ(DataOf(ToHtml(run, Outcomes(), {}, 0.0))["runs"][0]["complete"], false);
}

TEST(ReportTest, ARunWithoutAnOutcomeHasAllFaces) {
  const std::vector<Outcome> none;
  EXPECT_EQ(Json::parse(ToJson(Description(), none, {}, 0.0))["completed"], 0);
  EXPECT_EQ(DataOf(ToHtml(Description(), none, {}, 0.0))["runs"].size(), 1u);
  EXPECT_THAT(ToText(Description(), none, {}, 0.0), HasSubstr("0 completed"));
}

// A server's text is data everywhere: markup, the end of a script, invalid UTF-8, control
// characters, commas.
TEST(ReportTest, WordsOfAServerAreHarmless) {
  const std::string evil = "</script><script>alert(1)</script><!--\x1b[2J,\"\n\xff\xfe__proto__";
  std::vector<Outcome> outcomes = Outcomes();
  outcomes[2].reason = evil;
  outcomes[2].error = evil;
  RunDescription run = Description();
  run.label = run.model = evil;
  const std::string page = ToHtml(run, outcomes, {}, 0.0);
  const std::string harmless = ToHtml(Description(), Outcomes(), {}, 0.0);
  for (const char* mark : {"<script", "</script", "<!--"})
    EXPECT_EQ(Count(page, mark), Count(harmless, mark)) << mark;
  const Json report = DataOf(page)["runs"][0];
  EXPECT_THAT(report["timeline"]["errors"][0]["name"].get<std::string>(),
              HasSubstr("</script><script>alert(1)"));
  EXPECT_EQ(Json::parse(ToJson(run, outcomes, {}, 0.0))["completed"], 2);
  const std::string text = ToText(run, outcomes, {}, 0.0);
  EXPECT_EQ(Count(text, "\x1b"), 0u);
  EXPECT_THAT(ToCsv(run, outcomes),
              HasSubstr("\"</script><script>alert(1)</script><!--\x1b[2J,\"\"\n"));
}

std::string Whole(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Limits the size of files that the process writes during this object's lifetime, like a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit few{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &few);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  void (*const handler_)(int);
  rlimit before_{};
};

TEST(WriteFileTest, IsWholeOrNotThere) {
  const std::string folder = testing::TempDir() + "/write_file_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/report.json";
  std::ofstream(path + ".part") << "a user's";
  ASSERT_TRUE(WriteFile(path, "old").ok());
  ASSERT_TRUE(WriteFile(path, "new").ok());
  EXPECT_EQ(Whole(path), "new");
  EXPECT_EQ(Whole(path + ".part"), "a user's");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2);
}

TEST(WriteFileTest, AFullDiskIsNamed) {
  const absl::Status full = WriteFile("/dev/full", "a report");
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("/dev/full: cannot be written: No space left on device"));
  EXPECT_TRUE(CheckWritable("/dev/full").ok());
  for (const absl::Status& status :
       {WriteFile("/nowhere/at/all", ""), CheckWritable("/nowhere/at/all")})
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("/nowhere/at/all: cannot be written: No such file"));
  EXPECT_THAT(std::string(CheckWritable("/tmp").message()), HasSubstr("Is a directory"));
  // If the disk fills up during writing, the old file stays.
  const std::string folder = testing::TempDir() + "/full_disk_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteFile(folder + "/report.json", "old").ok());
  {
    const FileLimit limit(2);
    EXPECT_THAT(std::string(WriteFile(folder + "/report.json", "new").message()),
                HasSubstr("report.json: cannot be written: File too large"));
  }
  EXPECT_EQ(Whole(folder + "/report.json"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

}  // namespace
}  // namespace hydrant::load
