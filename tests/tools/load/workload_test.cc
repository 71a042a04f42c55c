#include "tools/load/run/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace hydrant::load {
namespace {

using testing::StartsWith;

WorkloadOptions Drawn() {
  WorkloadOptions options;
  options.seed = 5;
  options.num_requests = 2000;
  options.input_tokens = 50;
  options.output_tokens = 20;
  options.vocab_size = 1000;
  return options;
}

TEST(WorkloadTest, LengthsAreExactOrWithinTheirRange) {
  WorkloadOptions options = Drawn();
  Workload workload = *Workload::Create(options);
  for (int64_t i = 0; i < 100; ++i) {
    const PlannedRequest request = workload.Make(i);
    EXPECT_EQ(request.prompt.size(), 50u);
    EXPECT_EQ(request.max_tokens, 20);
    EXPECT_LT(*std::max_element(request.prompt.begin(), request.prompt.end()), 1000u);
  }
  options.range_ratio = 0.4;
  workload = *Workload::Create(options);
  std::map<size_t, int> inputs;
  double sum = 0;
  for (int64_t i = 0; i < workload.size(); ++i) {
    ++inputs[workload.Make(i).prompt.size()];
    sum += static_cast<double>(workload.Make(i).max_tokens);
  }
  EXPECT_EQ(inputs.begin()->first, 30u);
  EXPECT_EQ(inputs.rbegin()->first, 70u);
  EXPECT_NEAR(sum / 2000, 20, 0.5);
}

TEST(WorkloadTest, ARequestDoesNotDependOnEarlierOnes) {
  const Workload a = *Workload::Create(Drawn()), b = *Workload::Create(Drawn());
  b.Make(3);
  EXPECT_EQ(a.Make(7).prompt, b.Make(7).prompt);
  EXPECT_EQ(a.Make(7).seed, b.Make(7).seed);
  EXPECT_NE(a.Make(7).prompt, a.Make(8).prompt);
  WorkloadOptions other = Drawn();
  other.seed = 6;
  EXPECT_NE(Workload::Create(other)->Make(7).prompt, a.Make(7).prompt);
}

TEST(WorkloadTest, PromptsOfATextArePiecesOfIt) {
  WorkloadOptions options = Drawn();
  options.vocab_size = 0;
  options.text.resize(300);
  std::iota(options.text.begin(), options.text.end(), 5000);
  const Workload workload = *Workload::Create(options);
  std::set<uint32_t> begins;
  for (int64_t i = 0; i < 200; ++i) {
    const std::vector<uint32_t> prompt = workload.Make(i).prompt;
    begins.insert(prompt[0]);
    for (size_t j = 1; j < prompt.size(); ++j)
      ASSERT_EQ(prompt[j], 5000 + (prompt[j - 1] - 5000 + 1) % 300);
  }
  EXPECT_GT(begins.size(), 100u);
}

TEST(WorkloadTest, ArmsAndPrefixesAreSharedOutByTheirWeights) {
  WorkloadOptions options = Drawn();
  options.arm_weights = {1, 3};
  options.shared_prefixes = 4;
  options.shared_prefix_tokens = 30;
  const Workload workload = *Workload::Create(options);
  std::map<std::vector<uint32_t>, int> prefixes;
  int second = 0;
  for (int64_t i = 0; i < workload.size(); ++i) {
    const PlannedRequest request = workload.Make(i);
    second += request.arm;
    ASSERT_EQ(request.prompt.size(), 80u);
    ++prefixes[{request.prompt.begin(), request.prompt.begin() + 30}];
  }
  EXPECT_NEAR(second, 1500, 5 * std::sqrt(2000 * 0.75 * 0.25));
  EXPECT_EQ(prefixes.size(), 4u);
}

TEST(WorkloadTest, ATracesHashesAreSharedTokens) {
  WorkloadOptions options = Drawn();
  options.trace = {{.at = 0, .input_tokens = 1500, .output_tokens = 7, .hashes = {1, 2, 3}},
                   {.at = 1, .input_tokens = 1100, .output_tokens = 8, .hashes = {1, 2, 4}},
                   {.at = 2, .input_tokens = 600, .output_tokens = 9}};
  Workload workload = *Workload::Create(options);
  ASSERT_EQ(workload.size(), 3);
  const std::vector<uint32_t> a = workload.Make(0).prompt, b = workload.Make(1).prompt;
  ASSERT_EQ(a.size(), 1500u);
  ASSERT_EQ(b.size(), 1100u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 1024, b.begin()));
  EXPECT_NE(a[1024], b[1024]);
  EXPECT_EQ(workload.Make(2).prompt.size(), 600u);
  EXPECT_EQ(workload.Make(2).max_tokens, 9);
  options.trace_length_scale = 0.1;
  workload = *Workload::Create(options);
  const std::vector<uint32_t> c = workload.Make(0).prompt, d = workload.Make(1).prompt;
  EXPECT_EQ(c.size(), 150u);
  EXPECT_TRUE(std::equal(c.begin(), c.begin() + 102, d.begin()));
}

TEST(WorkloadTest, TurnsStayInOneArmWithTheirThinkTime) {
  WorkloadOptions options = Drawn();
  options.turns = 4;
  options.think_seconds = 3.0;
  options.arm_weights = {1, 1, 1};
  options.shared_prefixes = 2;
  options.shared_prefix_tokens = 7;
  const Workload workload = *Workload::Create(options);
  EXPECT_EQ(workload.num_conversations(), 500);
  std::map<int, int> arms;
  double think = 0;
  for (int64_t i = 0; i < workload.size(); ++i) {
    const PlannedRequest request = workload.Make(i);
    const bool begins = i % 4 == 0;
    EXPECT_EQ(request.arm, workload.Make(i - i % 4).arm);
    EXPECT_EQ(request.prompt.size(), begins ? 57u : 50u) << "a prefix comes once";
    EXPECT_EQ(request.think > 0, !begins);
    if (begins) ++arms[request.arm];
    think += request.think;
  }
  EXPECT_EQ(arms.size(), 3u);
  EXPECT_NEAR(think / 1500, 3.0, 0.3);
}

TEST(WorkloadTest, SaysWhichOptionIsWrong) {
  const auto error = [](auto change) {
    WorkloadOptions options = Drawn();
    change(&options);
    return std::string(Workload::Create(options).status().message());
  };
  using Options = WorkloadOptions;
  EXPECT_THAT(error([](Options* o) { o->num_requests = 0; }),
              StartsWith("num-prompts: 0 is outside"));
  EXPECT_THAT(error([](Options* o) { o->input_tokens = 0; }), StartsWith("input-len: 0"));
  EXPECT_THAT(error([](Options* o) { o->output_tokens = -1; }), StartsWith("output-len: -1"));
  EXPECT_THAT(error([](Options* o) { o->range_ratio = 1; }), StartsWith("range-ratio: 1"));
  EXPECT_THAT(error([](Options* o) { o->shared_prefixes = 2; }),
              StartsWith("prefix-len and num-prefixes"));
  EXPECT_THAT(error([](Options* o) {
                o->fault_rates = {0.6, 0.6};
              }),
              StartsWith("fault rates: their sum"));
  EXPECT_THAT(error([](Options* o) { o->fault_rates = {-0.1}; }), StartsWith("fault rate: -0.1"));
  EXPECT_THAT(error([](Options* o) { o->vocab_size = 0; }), StartsWith("dataset: "));
  EXPECT_THAT(error([](Options* o) { o->turns = 0; }), StartsWith("turns: 0"));
  EXPECT_THAT(error([](Options* o) { o->think_seconds = -1; }), StartsWith("think-time: -1"));
  EXPECT_THAT(error([](Options* o) {
                o->turns = 2;
                o->trace = {{.at = 0, .input_tokens = 5, .output_tokens = 5}};
              }),
              StartsWith("turns: a trace"));
}

}  // namespace
}  // namespace hydrant::load
