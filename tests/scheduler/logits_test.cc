// Token masks and biases of requests, on a fake engine that applies them, logprobs and kept
// entries: with several steps in flight, samples, and a pool that is too small.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "tests/scheduler/fake_grammar.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

// Two sequences do not fit: one is preempted, and prefills its prompt again.
EngineLimits TightLimits(int steps_in_flight) {
  EngineLimits limits = SmallLimits();
  limits.max_steps_in_flight = steps_in_flight;
  limits.num_blocks = 60;
  return limits;
}

class LogitsTest : public testing::TestWithParam<int> {
 protected:
  // Runs `count` requests that differ only in their seeds; at least one is preempted.
  std::vector<Stream> Run(Request request, int count = 3) {
    SchedulerHarness h(TightLimits(GetParam()));
    std::vector<RequestHandle> handles;
    for (int i = 0; i < count; ++i) {
      request.sampling.seed = 11 + i;
      handles.push_back(h.Add(request));
    }
    h.RunToEnd();
    std::vector<Stream> streams;
    for (const RequestHandle handle : handles) {
      if (h[handle].finished.has_value()) preemptions_ += h[handle].finished->usage->preemptions;
      streams.push_back(h[handle]);
    }
    return streams;
  }
  int preemptions_ = 0;
};

TEST_P(LogitsTest, AllowedTokensAlone) {
  Request request = MakeRequest(20, 30);
  request.sampling.allowed_token_ids = {300, 3, 301, 517};
  const std::set<TokenId> allowed = {3, 300, 301, 517};
  for (const Stream& stream : Run(request)) {
    EXPECT_EQ(stream.token_ids.size(), 30u);
    EXPECT_TRUE(
        std::ranges::includes(allowed, std::set(stream.token_ids.begin(), stream.token_ids.end())));
  }
  EXPECT_GT(preemptions_, 0);
}

TEST_P(LogitsTest, BadWordsNeverStand) {
  Request request = MakeRequest(20, 30);
  request.sampling.allowed_token_ids = {300, 480, 660, 840};
  const std::vector<std::vector<TokenId>> bad = {{660}, {300, 480}, {480, 840, 480}, {840, 840}};
  std::vector<Stream> free = Run(request);
  request.sampling.bad_words = bad;
  std::vector<Stream> held = Run(request);
  const auto holds = [&](const std::vector<Stream>& streams) {
    return std::ranges::count_if(streams, [&](const Stream& stream) {
      return std::ranges::any_of(bad, [&](const std::vector<TokenId>& word) {
        const auto& ids = stream.token_ids;
        return std::search(ids.begin(), ids.end(), word.begin(), word.end()) != ids.end();
      });
    });
  };
  EXPECT_EQ(holds(free), 3);  // otherwise the test shows nothing
  EXPECT_EQ(holds(held), 0);
  for (const Stream& stream : held) EXPECT_EQ(stream.token_ids.size(), 30u);
  EXPECT_GT(preemptions_, 0);
}

// The engine would sample end tokens from the start.
TEST_P(LogitsTest, NoEndBeforeMinTokens) {
  for (const int64_t min_tokens : {0, 1, 7}) {
    Request request = MakeRequest(20, 30);
    request.stopping.min_tokens = min_tokens;
    request.stopping.stop_token_ids = {400};
    request.sampling.logit_bias = {{500, 1.0}};
    SchedulerHarness h(TightLimits(GetParam()));
    h.engine.choose = [](uint64_t seed, int32_t position) -> std::optional<TokenId> {
      return (seed + position) % 2 == 0 ? 400 : FakeTokenizer::kEog;
    };
    const RequestHandle handle = h.Add(request);
    h.RunToEnd();
    const Stream& stream = h[handle];
    ASSERT_TRUE(stream.finished.has_value()) << stream.failed.value_or(Failed()).status;
    EXPECT_EQ(stream.finished->reason, FinishReason::kStop);
    EXPECT_EQ(std::ssize(stream.token_ids), min_tokens);
    for (const TokenId token : stream.token_ids) {
      EXPECT_NE(token, 400u);
      EXPECT_NE(token, FakeTokenizer::kEog);
    }
  }
}

TEST_P(LogitsTest, BiasesReachTheEngine) {
  Request request = MakeRequest(20, 30);
  request.sampling.logit_bias = {{77, 100.0}, {78, -1.5}};
  for (const Stream& stream : Run(request))
    EXPECT_EQ(stream.token_ids, std::vector<TokenId>(30, 77));
}

TEST_P(LogitsTest, AGrammarIsFollowedToItsEnd) {
  Request request = MakeRequest(20, 36);
  request.sampling.grammar = std::make_shared<FakeGrammar>(25);
  for (const Stream& stream : Run(request)) {
    ASSERT_TRUE(stream.finished.has_value()) << stream.failed.value_or(Failed()).status;
    EXPECT_EQ(stream.finished->reason, FinishReason::kStop);
    ASSERT_EQ(stream.token_ids.size(), 25u);
    for (size_t i = 0; i < stream.token_ids.size(); ++i) {
      const auto before = std::span(stream.token_ids).first(i);
      EXPECT_TRUE(FakeGrammar::MayFollow(stream.token_ids[i], before)) << i;
    }
  }
  EXPECT_GT(preemptions_, 0);
}

TEST_P(LogitsTest, AGrammarGoesOnWhereAStreamBroke) {
  Request request = MakeRequest(20, 36);
  request.sampling.grammar = std::make_shared<FakeGrammar>(12);
  const Stream whole = Run(request, 1)[0];
  request.resume_token_ids.assign(whole.token_ids.begin(), whole.token_ids.begin() + 5);
  const Stream rest = Run(request, 1)[0];
  EXPECT_EQ(rest.token_ids, std::vector(whole.token_ids.begin() + 5, whole.token_ids.end()));
  request.resume_token_ids.push_back((whole.token_ids[5] + 1) % 900);
  const Stream refused = Run(request, 1)[0];
  ASSERT_TRUE(refused.failed.has_value());
  EXPECT_EQ(refused.failed->status.message().substr(0, 20), "resume_token_ids[5]:");
}

TEST_P(LogitsTest, NothingMayFollow) {
  Request request = MakeRequest(20, 36);
  request.sampling.allowed_token_ids = {300};
  request.sampling.bad_words = {{300, 300, 300}};
  for (const Stream& stream : Run(request)) {
    EXPECT_EQ(stream.token_ids.size(), 2u);
    ASSERT_TRUE(stream.failed.has_value());
    EXPECT_EQ(stream.failed->reason, "INVALID");
    EXPECT_TRUE(absl::StrContains(stream.failed->status.message(), "no token may follow"))
        << stream.failed->status;
  }
}

TEST_P(LogitsTest, AMaskThatIsWrongEndsItsRequest) {
  Request request = MakeRequest(20, 36);
  request.sampling.grammar = std::make_shared<FakeGrammar>(12, 0, nullptr, /*wrong_at=*/4);
  for (const Stream& stream : Run(request)) {
    EXPECT_EQ(stream.token_ids.size(), 5u);
    ASSERT_TRUE(stream.failed.has_value());
    EXPECT_EQ(stream.failed->reason, "ENGINE_FAULT");
    EXPECT_TRUE(absl::IsInternal(stream.failed->status));
    EXPECT_TRUE(absl::StrContains(stream.failed->status.message(), "mask allowed it"))
        << stream.failed->status;
  }
}

TEST_P(LogitsTest, EachSampleHasItsOwn) {
  Request request = MakeRequest(20, 30);
  request.sampling.grammar = std::make_shared<FakeGrammar>(10);
  request.sampling.logprobs = true;
  EngineLimits limits = SmallLimits();
  limits.max_steps_in_flight = GetParam();
  SchedulerHarness h(limits);
  std::set<std::vector<TokenId>> answers;
  const std::vector<RequestHandle> handles = AddSamples(&h, request, 4);
  h.RunToEnd();
  for (const RequestHandle handle : handles) {
    answers.insert(h[handle].token_ids);
    for (size_t i = 0; i < h[handle].token_ids.size(); ++i) {
      const auto before = std::span(h[handle].token_ids).first(i);
      EXPECT_TRUE(FakeGrammar::MayFollow(h[handle].token_ids[i], before)) << i;
    }
  }
  EXPECT_EQ(answers.size(), 4u);
}

TEST_P(LogitsTest, LogprobsComeWithTheirTokens) {
  Request request = MakeRequest(20, 30);
  request.sampling.logprobs = request.sampling.prompt_logprobs = true;
  for (const Stream& stream : Run(request)) {  // the harness checks each token's logprobs
    EXPECT_EQ(stream.token_ids.size(), 30u);
    ASSERT_TRUE(stream.prompt_logprobs.has_value());
    const std::vector<TokenLogprobs>& tokens = stream.prompt_logprobs->tokens;
    ASSERT_EQ(tokens.size(), request.prompt.size() - 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(tokens[i].token, request.prompt[i + 1]);
      EXPECT_EQ(-tokens[i].logprob, i + 1);
    }
  }
  EXPECT_GT(preemptions_, 0);
}

// With a full cache every head holds all of the prompt.
TEST_P(LogitsTest, EntriesOfThePromptAreReportedOnce) {
  Request request = MakeRequest(20, 30);
  request.report_kept_entries = true;
  for (const int question : {0, 5}) {
    request.question_tokens = question;
    for (const Stream& stream : Run(request)) {
      EXPECT_EQ(stream.token_ids.size(), 30u);
      ASSERT_TRUE(
          stream.prompt_entries.has_value());  // the harness sees that it came once, and first
      const auto& [kept, texts] = *stream.prompt_entries;
      ASSERT_EQ(kept.num_tokens(), 20);
      const std::vector<uint8_t> all = {0xFF, 0xFF, 0x0F};
      for (int layer = 0; layer < kept.num_layers(); ++layer) {
        for (int head = 0; head < kept.num_kv_heads(); ++head)
          EXPECT_TRUE(std::ranges::equal(kept.OfHead(layer, head), all));
      }
      ASSERT_EQ(texts.size(), 20u);
      for (size_t i = 0; i < texts.size(); ++i)
        EXPECT_EQ(texts[i], std::string(1, static_cast<char>(request.prompt[i])));
    }
  }
  EXPECT_GT(preemptions_, 0);
}

TEST(KeptEntries, AreWhatTheBudgetLeaves) {
  SchedulerHarness h;
  Request request = MakeRequest(40, 4);
  request.cache.policy = "streaming";
  request.cache.max_cache_tokens = 12;
  request.cache.sink_tokens = 2;
  request.report_kept_entries = true;
  const RequestHandle reported = h.Add(request);
  request.sampling.seed = 8;
  request.report_kept_entries = false;
  const RequestHandle silent = h.Add(request);
  h.RunToEnd();
  EXPECT_FALSE(h[silent].prompt_entries.has_value());
  ASSERT_TRUE(h[reported].prompt_entries.has_value());
  const KeptEntries& kept = h[reported].prompt_entries->kept;
  int64_t bits = 0;
  for (int layer = 0; layer < kept.num_layers(); ++layer) {
    for (int head = 0; head < kept.num_kv_heads(); ++head) {
      for (const uint8_t byte : kept.OfHead(layer, head)) bits += std::popcount(byte);
    }
  }
  EXPECT_EQ(bits, h[reported].finished->usage->kv_entries_of_prompt);
}

// Opens once, for all waiting threads; a wait fails after 20 seconds.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [this] { return is_open_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

// While a slow mask exceeds the time that a step may wait, other sequences run to their end.
TEST_P(LogitsTest, ASlowMaskDelaysNoOtherSequence) {
  EngineLimits limits = SmallLimits();
  limits.max_steps_in_flight = GetParam();
  Gate gate;
  SchedulerHarness h(limits);
  Request slow = MakeRequest(20, 30);
  slow.sampling.grammar =
      std::make_shared<FakeGrammar>(12, kMaskStepsBesideAStep + 1, [&gate] { gate.Wait(); });
  const RequestHandle waiting = h.Add(slow);
  const RequestHandle plain = h.Add(MakeRequest(20, 40, 2));
  Request quick = MakeRequest(20, 36, 3);
  quick.sampling.grammar = std::make_shared<FakeGrammar>(25, kMaskStepsBesideAStep);
  const RequestHandle other = h.Add(quick);
  while (!(h[plain].finished.has_value() && h[other].finished.has_value())) {
    h.Step();
    if (HasFailure()) break;
  }
  EXPECT_EQ(h[plain].token_ids.size(), 40u);
  EXPECT_EQ(h[other].token_ids.size(), 25u);
  EXPECT_EQ(h[waiting].token_ids.size(), 1u);  // sampled with the first mask
  gate.Open();
  h.RunToEnd();
  ASSERT_EQ(h[waiting].token_ids.size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    const auto before = std::span(h[waiting].token_ids).first(i);
    EXPECT_TRUE(FakeGrammar::MayFollow(h[waiting].token_ids[i], before)) << i;
  }
}

// A request that is cancelled while its mask is computed ends before the mask does, as do others.
TEST_P(LogitsTest, ASlowMaskOutlivesItsRequest) {
  EngineLimits limits = SmallLimits();
  limits.max_steps_in_flight = GetParam();
  Gate gate;
  {
    SchedulerHarness h(limits);
    Request slow = MakeRequest(20, 30);
    slow.sampling.grammar =
        std::make_shared<FakeGrammar>(12, kMaskStepsBesideAStep + 1, [&gate] { gate.Wait(); });
    const RequestHandle first = h.Add(slow), second = h.Add(slow);
    h.Add(MakeRequest(20, 40, 2));
    for (int i = 0; i < 10; ++i) h.Step();
    for (const RequestHandle handle : {first, second})
      h.scheduler.Cancel(handle, absl::CancelledError("enough"));
    h.RunToEnd();
    EXPECT_TRUE(h[first].failed.has_value() && h[second].failed.has_value());
    gate.Open();
  }
}

// All masks of a step share its waiting time; masks beyond it are applied in a later step.
TEST_P(LogitsTest, MasksShareTheStepsWaitingTime) {
  EngineLimits limits = SmallLimits();
  limits.max_steps_in_flight = GetParam();
  SchedulerHarness h(limits);
  std::vector<RequestHandle> handles;
  for (int i = 0; i < 5; ++i) {
    Request request = MakeRequest(20, 30, 1 + i);
    request.sampling.grammar = std::make_shared<FakeGrammar>(10 + i, kMaskStepsBesideAStep / 2);
    handles.push_back(h.Add(request));
  }
  h.RunToEnd();
  for (int i = 0; i < 5; ++i) {
    const std::vector<TokenId>& ids = h[handles[i]].token_ids;
    ASSERT_EQ(std::ssize(ids), 10 + i);
    for (size_t at = 0; at < ids.size(); ++at)
      EXPECT_TRUE(FakeGrammar::MayFollow(ids[at], std::span(ids).first(at))) << at;
  }
}

// Sequences that are preempted and prefilled again while their masks are slow.
TEST_P(LogitsTest, SlowMasksAfterPreemption) {
  Request request = MakeRequest(20, 36);
  request.sampling.grammar = std::make_shared<FakeGrammar>(25);
  const std::vector<Stream> quick = Run(request);
  request.sampling.grammar = std::make_shared<FakeGrammar>(25, kMaskStepsBesideAStep + 1);
  const std::vector<Stream> slow = Run(request);
  for (size_t i = 0; i < quick.size(); ++i) EXPECT_EQ(slow[i].token_ids, quick[i].token_ids);
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, LogitsTest, testing::Values(1, 2));

TEST(PromptLogprobsTest, ReadAllOfThePrompt) {
  EngineLimits limits = SmallLimits();
  limits.max_model_len = limits.prefill_arena_tokens = 512;
  limits.num_blocks = 1024;
  limits.table_entries = 2048;
  limits.num_prefix_blocks = 8;
  SchedulerHarness h(limits);
  Request request = MakeRequest(300, 1);
  const RequestHandle before = h.Add(request);
  h.RunToEnd();
  ASSERT_TRUE(h[before].finished.has_value());
  const RequestHandle again = h.Add(request);
  request.sampling.prompt_logprobs = true;
  const RequestHandle scored = h.Add(request);
  h.RunToEnd();
  EXPECT_GT(h[again].finished->usage->cached_tokens, 0);
  EXPECT_EQ(h[scored].finished->usage->cached_tokens, 0);
  EXPECT_EQ(h[scored].prompt_logprobs->tokens.size(), 299u);
}

}  // namespace
}  // namespace hydrant
