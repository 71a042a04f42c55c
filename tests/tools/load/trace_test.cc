#include "tools/load/run/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

namespace hydrant::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto trace = ParseTrace(text, "load.txt");
  return trace.ok() ? "" : std::string(trace.status().message());
}

TEST(TraceTest, ReadsAzuresTable) {
  const auto trace = ParseTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 18:15:50.9951690,396,109\r\n"
      "2023-11-16 18:15:46.6805900,374,44\n\n"
      "2023-11-17 00:00:00,0,1",
      "load.csv");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3u);
  EXPECT_EQ((*trace)[0].at, 0.0);
  EXPECT_EQ((*trace)[0].input_tokens, 374);
  EXPECT_EQ((*trace)[0].output_tokens, 44);
  EXPECT_NEAR((*trace)[1].at, 4.314579, 1e-6);
  EXPECT_NEAR((*trace)[2].at, 5 * 3600 + 44 * 60 + 13.31941, 1e-6);
}

TEST(TraceTest, ReadsMooncakesLines) {
  const auto trace = ParseTrace(
      R"({"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9]})"
      "\n"
      R"({"timestamp": 1500, "input_length": 5, "output_length": 500})",
      "load.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].output_tokens, 500);
  EXPECT_TRUE((*trace)[0].hashes.empty());
  EXPECT_EQ((*trace)[1].at, 1.5);
  EXPECT_THAT((*trace)[1].hashes, ElementsAre(0, 1, 9));
}

TEST(TraceTest, NamesLineAndField) {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const std::string good = "2023-11-16 18:15:50.5,396,109\n";
  const std::pair<std::string, const char*> cases[] = {
      {"", "load.txt: holds no request"},
      {header, "load.txt: holds no request"},
      {"TIME,IN,OUT\n", "load.txt, line 1, header: 'TIME,IN,OUT' is neither"},
      {header + good + "2023-11-16 18:15:50.5,396\n",
       "load.txt, line 3, columns: 2 cells, 3 are needed"},
      {header + "yesterday,396,109\n", "load.txt, line 2, TIMESTAMP: 'yesterday'"},
      {header + "2023-11-16 18:15:50.5,4x,109\n",
       "load.txt, line 2, ContextTokens: '4x' is no whole number"},
      {header + "\n" + good + "2023-11-16 18:15:50.5,4,-1\n",
       "load.txt, line 4, GeneratedTokens: -1 is outside [0, 100000000]"},
      {"{\"timestamp\": 1, \"input_length\": 2, \"output_length\": 3}\n{]\n",
       "load.txt, line 2, row: '{]' is no JSON"},
      {"{\"input_length\": 2, \"output_length\": 3}", "load.txt, line 1, timestamp: missing"},
      {"{\"timestamp\": \"1\", \"input_length\": 2, \"output_length\": 3}",
       "line 1, timestamp: missing, or no number"},
      {"{\"timestamp\": 1, \"input_length\": 2.5, \"output_length\": 3}",
       "line 1, input_length: missing, or no whole"},
      {"{\"timestamp\": 1, \"input_length\": 2, \"output_length\": 1e3}",
       "line 1, output_length: missing, or no whole"},
      {"{\"timestamp\": 1, \"input_length\": 2, \"output_length\": 3, \"hash_ids\": [1, \"2\"]}",
       "line 1, hash_ids: not a list of whole numbers"},
  };
  for (const auto& [text, error] : cases) EXPECT_THAT(ErrorOf(text), HasSubstr(error)) << text;
  EXPECT_THAT(std::string(ReadTrace("/nowhere/a.csv").status().message()),
              HasSubstr("/nowhere/a.csv: cannot be opened"));
}

// The published files, if available.
TEST(TraceTest, ReadsThePublishedTraces) {
  const char* folder = std::getenv("HYDRANT_DATA_DIR");
  const std::filesystem::path traces =
      std::filesystem::path(folder != nullptr ? folder : "../shared/data") / "traces";
  if (!std::filesystem::exists(traces))
    GTEST_SKIP() << "no " << traces << " (set HYDRANT_DATA_DIR)";
  const auto azure = ReadTrace(traces / "AzureLLMInferenceTrace_conv.csv");
  ASSERT_TRUE(azure.ok()) << azure.status();
  EXPECT_EQ(azure->size(), 19366u);  // as published
  const auto mooncake = ReadTrace(traces / "conversation_trace.jsonl");
  ASSERT_TRUE(mooncake.ok()) << mooncake.status();
  EXPECT_EQ(mooncake->size(), 12031u);
  for (const TracedRequest& request : *mooncake)
    ASSERT_EQ(static_cast<int64_t>(request.hashes.size()),
              (request.input_tokens + kTokensPerHash - 1) / kTokensPerHash);
}

}  // namespace
}  // namespace hydrant::load
