// Scheduler and engine together: the result of a request must not depend on other requests, on the
// size of the pool, or on preemption and replay (--batch-invariant; design: invariant 5), and every
// page is freed.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "engine/run/engine.h"
#include "scheduler/serving_loop.h"
#include "tests/device.h"
#include "tests/engine/run/random_model.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {
namespace {

class Collector final : public EventSink {
 public:
  struct Answer {
    std::vector<TokenId> tokens;
    Usage usage;
    absl::Status status;
    bool ended = false;
  };

  void Deliver(std::vector<Event> events) override {
    std::lock_guard lock(mutex_);
    for (const Event& event : events) {
      Answer& answer = answers_[event.handle];
      if (const auto* delta = std::get_if<Delta>(&event.what)) {
        if (delta->token_id.has_value()) answer.tokens.push_back(*delta->token_id);
      } else if (const auto* finished = std::get_if<Finished>(&event.what)) {
        answer.usage = finished->usage;
        answer.ended = true;
      } else if (const auto* failed = std::get_if<Failed>(&event.what)) {
        answer.status = failed->status;
        answer.ended = true;
      }
    }
    changed_.notify_all();
  }

  Answer Wait(RequestHandle handle) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answers_[handle].ended; });
    return answers_[handle];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestHandle, Answer> answers_;
};

Request MakeRequest(int index, uint64_t seed, int vocab) {
  std::mt19937_64 rng(seed + index);
  Request request;
  request.request_id = std::to_string(index);
  request.prompt.resize(20 + rng() % 150);
  if (index == 4) request.prompt.resize(190);  // long enough for self-tuning
  for (TokenId& token : request.prompt) token = static_cast<TokenId>(rng() % vocab);
  const std::vector<std::string> policies = {
      "full",           "h2o",     "snapkv",       "streaming",   "co2",         "local",
      "ada-snapkv",     "ada-h2o", "pyramidkv",    "ada-pyramid", "reconstruct", "subgen",
      "subgen-kcenter", "tova",    "scissorhands", "random",      "echo",        "auto"};
  request.cache.policy = policies[index % policies.size()];
  if (request.cache.policy != "full") request.cache.max_cache_tokens = 24 + rng() % 60;
  if (index == 7 || index == 15) request.cache.min_retained_mass = 0.8;
  if (index == 4) request.cache.params = {{"self_tuning", "true"}, {"budget_scope", "model"}};
  if (index == 17) {
    request.cache.min_retained_mass = 0.9;
    request.question_tokens = 7;
  }
  if (index == 18) {  // a second co2 request
    request.cache.policy = "co2";
    request.cache.max_cache_tokens = 30;
    request.cache.params = {{"budget_scope", "layer"}, {"measurement_steps", "9"}};
  }
  if (index == 3) request.cache.params = {{"rolling", "true"}};
  request.sampling.temperature = index % 2 == 0 ? 0.0 : 0.9;
  request.sampling.top_p = 0.95;
  request.sampling.seed = rng();
  if (index % 5 == 0) {
    request.sampling.repetition_penalty = 1.2;
    request.sampling.frequency_penalty = 0.1;
  }
  request.stopping.max_tokens = 60 + rng() % 60;
  request.stopping.ignore_eos = true;
  return request;
}

class ServingTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(GetParam()); }
  std::unique_ptr<Engine> MakeEngine(int num_blocks, int max_num_seqs,
                                     bool async_scheduling = false) const {
    EngineOptions options;
    options.device = GetParam();
    options.num_threads = 2;
    options.batch_invariant = true;
    options.dtype = WeightDType::kFloat32;
    options.num_blocks_override = num_blocks;
    options.max_num_seqs = max_num_seqs;
    options.async_scheduling = async_scheduling;
    auto engine = Engine::Create(model_, options, nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  std::shared_ptr<const ModelSource> model_ = MakeRandomModel(SmallConfig(6, 2), 5);
  FakeTokenizer tokenizer_;
};

INSTANTIATE_TEST_SUITE_P(Devices, ServingTest, ::testing::Values("reference", "cpu", "cuda"),
                         [](const auto& info) { return info.param; });

TEST_P(ServingTest, CompanyAndPreemptionChangeNoToken) {
  constexpr uint64_t kSeed = 4711;
  constexpr int kRequests = 19;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const int vocab = model_->config().vocab_size;

  std::vector<std::vector<TokenId>> alone;
  {
    const auto engine = MakeEngine(4000, 1);
    Collector collector;
    auto loop = ServingLoop::Start(engine.get(), &tokenizer_, {}, &collector);
    ASSERT_TRUE(loop.ok()) << loop.status();
    for (int i = 0; i < kRequests; ++i) {
      (*loop)->Submit(i + 1, MakeRequest(i, kSeed, vocab));
      const Collector::Answer answer = collector.Wait(i + 1);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      alone.push_back(answer.tokens);
    }
  }

  // Room for two or three full sequences: growth exhausts the pool repeatedly. With one step in
  // flight, then with two.
  for (const bool async_scheduling : {false, true}) {
    SCOPED_TRACE(async_scheduling);
    const auto engine = MakeEngine(160, 12, async_scheduling);
    EXPECT_EQ(engine->limits().max_steps_in_flight, async_scheduling ? 2 : 1);
    Collector collector;
    auto loop =
        ServingLoop::Start(engine.get(), &tokenizer_, {.max_num_batched_tokens = 64}, &collector);
    ASSERT_TRUE(loop.ok()) << loop.status();
    for (int i = 0; i < kRequests; ++i) (*loop)->Submit(i + 1, MakeRequest(i, kSeed, vocab));
    int preemptions = 0;
    for (int i = 0; i < kRequests; ++i) {
      const Collector::Answer answer = collector.Wait(i + 1);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.tokens, alone[i])
          << "request " << i << ", preempted " << answer.usage.preemptions << " times";
      EXPECT_EQ(answer.usage.completion_tokens, static_cast<int>(answer.tokens.size()));
      preemptions += answer.usage.preemptions;
    }
    EXPECT_GT(preemptions, 0) << "the pool was meant to be too small";
    while (!(*loop)->Idle()) std::this_thread::yield();
    EXPECT_EQ((*loop)->Stats().pages_free, (*loop)->Stats().pages_total);
  }
}

// A broken stream is resumed: known tokens are replayed and the rest is the same.
TEST_P(ServingTest, AResumedStreamRepeatsItself) {
  const auto engine = MakeEngine(2000, 4);
  Collector collector;
  auto loop = ServingLoop::Start(engine.get(), &tokenizer_, {}, &collector);
  ASSERT_TRUE(loop.ok()) << loop.status();
  Request request = MakeRequest(1, 99, model_->config().vocab_size);
  (*loop)->Submit(1, request);
  const std::vector<TokenId> whole = collector.Wait(1).tokens;
  request.resume_token_ids.assign(whole.begin(), whole.begin() + 33);
  (*loop)->Submit(2, request);
  const Collector::Answer rest = collector.Wait(2);
  EXPECT_EQ(rest.tokens, std::vector<TokenId>(whole.begin() + 33, whole.end()));
  EXPECT_EQ(rest.usage.completion_tokens, static_cast<int>(whole.size()));
}

// A rolling stream runs far beyond the context (of 512) in the pages of its budget.
TEST_P(ServingTest, ARollingStreamOutrunsTheContext) {
  const int tokens = GetParam() == "cpu" ? 20000 : 700;
  const auto engine = MakeEngine(100, 2);
  ASSERT_EQ(engine->limits().max_model_len, 512);
  for (const char* policy : {"streaming", "h2o"}) {
    Collector collector;
    auto loop = ServingLoop::Start(engine.get(), &tokenizer_, {}, &collector);
    ASSERT_TRUE(loop.ok()) << loop.status();
    Request request = MakeRequest(0, 31, model_->config().vocab_size);
    request.cache = CacheSpec();
    request.cache.policy = policy;
    request.cache.max_cache_tokens = 40;
    request.cache.params = {{"rolling", "true"}};
    request.sampling = {.temperature = 1.0, .seed = 7};
    request.stopping.max_tokens = tokens;
    (*loop)->Submit(1, request);
    const Collector::Answer answer = collector.Wait(1);
    ASSERT_TRUE(answer.status.ok()) << policy << ": " << answer.status;
    EXPECT_EQ(static_cast<int>(answer.tokens.size()), tokens);
    EXPECT_EQ(answer.usage.kv_tokens_kept, 40);
    EXPECT_LE(answer.usage.kv_pages_peak, 3 * 2 * 2 + 1) << "3 pages of 16 a head";
    EXPECT_EQ(answer.usage.preemptions, 0);
    // No repetition loop: the last tokens are varied, too.
    const std::set<TokenId> last(answer.tokens.end() - 300, answer.tokens.end());
    EXPECT_GT(last.size(), 20u) << policy;
  }
}

// A loop that stops while requests run leaves no state in the engine.
TEST_P(ServingTest, AnotherLoopTakesTheEngineOfAStoppedOne) {
  const int vocab = model_->config().vocab_size;
  const auto engine = MakeEngine(4000, 4, /*async_scheduling=*/true);
  std::vector<std::vector<TokenId>> answers;
  for (const bool stopped : {false, true, false}) {
    Collector collector;
    auto loop = ServingLoop::Start(engine.get(), &tokenizer_, {}, &collector);
    ASSERT_TRUE(loop.ok()) << loop.status();
    Request longer = MakeRequest(3, 99, vocab);
    longer.stopping.max_tokens = 10'000'000;  // rolling: it still runs at the stop on any machine
    if (stopped) (*loop)->Submit(1, longer);
    (*loop)->Submit(2, MakeRequest(1, 99, vocab));
    answers.push_back(collector.Wait(2).tokens);
    (*loop)->Stop();
    if (stopped) {
      EXPECT_EQ(collector.Wait(1).status.code(), absl::StatusCode::kUnavailable);
    }
  }
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

}  // namespace
}  // namespace hydrant
