// The timeline parsed as JSON, with the contents of steps and requests.
#include "server/observe/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/test_files.h"

namespace hydrant {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kPatient{60};

TEST(StepTrace, IsJsonOfStepsAndRequests) {
  const std::string path = testing::TempDir() + "/trace.json";
  {
    auto trace = StepTrace::Open(path);
    ASSERT_TRUE(trace.ok()) << trace.status();
    ServingStats stats;
    stats.running = 3;
    stats.prefilling = 1;
    stats.waiting = 2;
    stats.pages_total = 100;
    stats.pages_free = 40;
    stats.swapped_pages = 7;
    const Usage usage = {.prompt_tokens = 9,
                         .completion_tokens = 5,
                         .queue_us = 100,
                         .prefill_us = 200,
                         .decode_us = 300,
                         .swapped_us = 120,
                         .preempted_us = 30};
    std::vector<Event> events(2);
    events[0] = {.handle = 4, .what = Finished{.usage = usage}};
    events[1] = {.handle = 5,
                 .what = Failed{.status = absl::CancelledError(),
                                .reason = "CANCELLED",
                                .usage = Usage{.queue_us = 50}}};
    (*trace)->Add({.begin = 1000,
                   .end = 3000,
                   .work = {.rows = 3, .pages = 60, .prompt_tokens = 17.4, .prompt_pairs = 150.6},
                   .predicted_us = 1900.6},
                  stats, events);
    (*trace)->Add({.begin = 3000, .end = 3500}, stats, {});  // an empty step
    // The unfinished file can be opened while the daemon runs.
    ASSERT_TRUE((*trace)->Flush(kPatient));
    EXPECT_TRUE(json::accept(ReadTextFile(path) + "]"));
  }
  const json trace = json::parse(ReadTextFile(path));
  std::vector<json> steps, phases, counters;
  for (const json& event : trace) {
    if (event["ph"] == "X") steps.push_back(event);
    if (event["ph"] == "b" || event["ph"] == "e") phases.push_back(event);
    if (event["ph"] == "C") counters.push_back(event);
  }
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0]["ts"], 1000);
  EXPECT_EQ(steps[0]["dur"], 2000);
  EXPECT_EQ(steps[0]["args"], (json{{"decoding", 3},
                                    {"pages", 60},
                                    {"prompt_tokens", 17},
                                    {"prompt_pairs", 151},
                                    {"predicted_us", 1901}}));
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[0]["args"], (json{{"running", 3}, {"prefilling", 1}, {"waiting", 2}}));
  EXPECT_EQ(counters[1]["args"], (json{{"used", 60}, {"swapped", 7}}));
  // Three phases of one request, the wait of the other, each with begin and end.
  ASSERT_EQ(phases.size(), 8u);
  EXPECT_EQ(phases[0]["name"], "queued");
  EXPECT_EQ(phases[0]["ts"], 3000 - 600);
  EXPECT_EQ(phases[4]["name"], "decode");
  EXPECT_EQ(phases[4]["args"]["tokens"], 5);
  EXPECT_EQ(phases[4]["args"]["swapped_us"], 120);
  EXPECT_EQ(phases[4]["args"]["preempted_us"], 30);
  EXPECT_EQ(phases[5]["ts"], 3000);
  EXPECT_EQ(phases[6]["id"], 5);
}

TEST(StepTrace, AFolderThatIsNotThereIsNamed) {
  const auto trace = StepTrace::Open("/no/such/folder/trace.json");
  ASSERT_FALSE(trace.ok());
  EXPECT_THAT(std::string(trace.status().message()), testing::HasSubstr("/no/such/folder"));
}

// It logs a warning, and the daemon continues.
TEST(StepTrace, AFullDiskEndsIt) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit little{.rlim_cur = 200, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &little);
  auto trace = StepTrace::Open(testing::TempDir() + "/trace_of_a_full_disk.json");
  ASSERT_TRUE(trace.ok());
  StepTaken step;
  step.work.rows = 1;
  EXPECT_TRUE((*trace)->IsWriting());
  (*trace)->Add(step, {}, {});
  EXPECT_FALSE((*trace)->Flush(kPatient));
  (*trace)->Add(step, {}, {});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE((*trace)->IsWriting());
}

TEST(StepTrace, TakesThePlaceOfAnOlderTraceAlone) {
  const std::string path = testing::TempDir() + "/trace_of_before.json";
  std::ofstream(path) << "";
  EXPECT_TRUE(StepTrace::Open(path).ok());
  const std::string trace = ReadTextFile(path);
  EXPECT_TRUE(StepTrace::Open(path).ok());
  EXPECT_EQ(ReadTextFile(path), trace);

  std::ofstream(path) << "GGUF and gigabytes more";
  const absl::Status status = StepTrace::Open(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("holds something else than a trace of steps"));
  EXPECT_EQ(ReadTextFile(path), "GGUF and gigabytes more");
}

// A pipe would need a reader.
TEST(StepTrace, APipeIsRefused) {
  const std::string path = testing::TempDir() + "/trace_pipe_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(StepTrace::Open(path).status().message()),
              testing::HasSubstr("is no regular file"));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace hydrant
