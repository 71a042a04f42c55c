// Scheduler and engine together: sequences that share pages get the results of sequences with their
// own pages, bit for bit (--batch-invariant), while others still decode and after they have ended.
#include <gtest/gtest.h>

#include "engine/cache/cache_plan.h"
#include "tests/device.h"
#include "tests/engine/run/random_model.h"
#include "tests/integration/driven_server.h"

namespace hydrant {
namespace {

class SharedPagesTest : public ::testing::TestWithParam<std::tuple<std::string, Family>> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(std::get<0>(GetParam())); }

  std::unique_ptr<Server> MakeServer(bool prefix_caching = true) const {
    EngineOptions options =
        InvariantOptions(std::get<0>(GetParam()), std::get<1>(GetParam()).kv_dtype);
    options.prefix_cache_memory_bytes = prefix_caching ? 8 << 20 : 0;
    options.context_memory_bytes = 16 << 20;
    return std::make_unique<Server>(model_, options);
  }
  std::vector<TokenId> Tokens(int count, uint64_t seed) const {
    return RandomTokens(count, model_->config().vocab_size, seed);
  }
  Request MakeRequest(std::vector<TokenId> prompt, const std::string& policy, uint64_t seed,
                      int64_t max_cache_tokens) const {
    Request request;
    request.prompt = std::move(prompt);
    request.cache.policy = policy;
    if (policy != "full") request.cache.max_cache_tokens = max_cache_tokens;
    request.sampling.temperature = 0.8;
    request.sampling.seed = seed;
    request.stopping.max_tokens = 40;
    request.stopping.ignore_eos = true;
    return request;
  }
  std::vector<TokenId> Alone(Request request) const {
    request.sample_of.reset();
    return MakeServer(false)->Run(std::move(request)).tokens;
  }
  int Pages(const Server& server) const {
    const ServingStats stats = server.Stats();
    return static_cast<int>(stats.pages_total - stats.pages_free);
  }
  int Heads() const { return model_->config().num_layers * model_->config().num_kv_heads; }

  std::shared_ptr<const ModelSource> model_ = MakeRandomModel(
      InFamily(SmallConfig(6, 2, std::get<1>(GetParam()).head_dim), std::get<1>(GetParam()).name),
      5);
};

INSTANTIATE_TEST_SUITE_P(Devices, SharedPagesTest, DevicesAndFamilies(), NameOfDeviceAndFamily);

// Four prompts with a shared prefix under one policy; one is prefilled first. Caps of 110 are
// reached during decode: from then on each sequence overwrites its own entries.
TEST_P(SharedPagesTest, PromptsThatBeginAlike) {
  const std::vector<TokenId> first = Tokens(100, 1);
  for (const PolicyInfo& policy : ListPolicies()) {
    const auto server = MakeServer();
    std::vector<Request> requests;
    std::vector<RequestHandle> handles;
    for (const int shared : {100, 95, 96, 33, 97}) {
      std::vector<TokenId> prompt = Tokens(100, 100 + shared);
      std::copy_n(first.begin(), shared, prompt.begin());
      requests.push_back(MakeRequest(std::move(prompt), policy.name, shared, 110));
      requests.back().stopping.max_tokens = 20 + static_cast<int64_t>(handles.size()) * 5;
      handles.push_back(server->Add(requests.back()));
    }
    server->RunToEnd();
    for (size_t i = 0; i < handles.size(); ++i)
      EXPECT_EQ((*server)[handles[i]].tokens, Alone(requests[i])) << policy.name << ", " << i;
  }
}

TEST_P(SharedPagesTest, HoldOnePrefixAndTails) {
  if (std::get<1>(GetParam()).name == std::string("gemma3_text"))
    GTEST_SKIP() << "layers with a window share no pages of prompts";
  const std::vector<TokenId> prefix = Tokens(96, 1);
  for (const std::string policy : {"h2o", "full", "local", "tova", "scissorhands"}) {
    const auto server = MakeServer();
    for (int i = 0; i < 6; ++i) {
      std::vector<TokenId> prompt = prefix;
      prompt.push_back(static_cast<TokenId>(i));
      server->Add(MakeRequest(std::move(prompt), policy, i, 200));
    }
    int most = 0;
    while (!server->Empty()) {
      server->Step();
      most = std::max(most, Pages(*server));
    }
    // Pages of 16 entries: six for the prefix, and at most three for 40 later tokens. Each of the
    // six sequences has its own state for nine pages in every head: a slab holds the scores of 16
    // pages, or three numbers per entry of 4.
    const int for_state = policy == "scissorhands"                ? 6 * 9 * Heads() / 4
                          : policy == "full" || policy == "local" ? 0
                                                                  : 6 * ((9 * Heads() + 15) / 16);
    EXPECT_EQ(most, Heads() * (6 + 6 * 3) + for_state) << policy;
    EXPECT_EQ(Pages(*server), 0);
    if (std::get<0>(GetParam()) == "cuda") break;  // its emulation is slow
  }
}

// One sample prefills the prompt, the others start with its pages.
TEST_P(SharedPagesTest, Samples) {
  const std::vector<TokenId> prompt = Tokens(100, 1);
  for (const PolicyInfo& policy : ListPolicies()) {
    for (const int64_t cap : {40, 110}) {
      for (const int64_t question : {0, 1, 20}) {
        SCOPED_TRACE(testing::Message()
                     << policy.name << ", cap " << cap << ", question " << question);
        const auto server = MakeServer();
        std::vector<Request> requests;
        std::vector<RequestHandle> handles;
        for (int i = 0; i < 4; ++i) {
          Request request = MakeRequest(prompt, policy.name, 10 + i, cap);
          request.question_tokens = question;
          request.sampling.repetition_penalty = 1.2;
          request.stopping.max_tokens = 20 + 5 * i;
          if (i > 0) request.sample_of = handles[0];
          requests.push_back(request);
          handles.push_back(server->Add(request));
        }
        server->RunToEnd();
        EXPECT_EQ(server->Stats().prompt_tokens, 100u) << "the prompt is read once";
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ((*server)[handles[i]].tokens, Alone(requests[i])) << i;
          EXPECT_EQ((*server)[handles[i]].usage.kv_entries_of_prompt,
                    (*server)[handles[0]].usage.kv_entries_of_prompt);
        }
      }
    }
    if (std::get<0>(GetParam()) == "cuda") break;  // its emulation is slow: `full` alone
  }
}

// The sample that prefills the prompt ends with its first token or is cancelled, or a sample finds
// no free slot.
TEST_P(SharedPagesTest, SamplesWithoutTheirReader) {
  const std::vector<TokenId> prompt = Tokens(100, 1);
  for (const bool cancelled : {false, true}) {
    const auto server = MakeServer();
    std::vector<Request> requests;
    std::vector<RequestHandle> handles;
    for (int i = 0; i < 12; ++i) {
      requests.push_back(MakeRequest(prompt, "full", 10 + i, 0));
      if (i == 0 && !cancelled) requests.back().stopping.max_tokens = 1;
      if (i > 0) requests.back().sample_of = handles[0];
      handles.push_back(server->Add(requests.back()));
    }
    if (cancelled) server->Cancel(handles[0]);
    server->RunToEnd();
    for (size_t i = cancelled ? 1 : 0; i < handles.size(); ++i)
      EXPECT_EQ((*server)[handles[i]].tokens, Alone(requests[i])) << i;
  }
}

// Several requests continue one context at a time.
TEST_P(SharedPagesTest, OneContext) {
  for (const PolicyInfo& policy : ListPolicies()) {
    for (const int64_t cap : {40, 130}) {
      SCOPED_TRACE(testing::Message() << policy.name << ", cap " << cap);
      Request first = MakeRequest(Tokens(100, 1), policy.name, 7, cap);
      first.stopping.max_tokens = 5;
      first.keep_as.handle = "kept";
      const auto next = [&](int i) {
        Request request = MakeRequest(Tokens(3 + 9 * i, 50 + i), "full", 20 + i, 0);
        request.context = "kept";
        return request;
      };
      const auto together = MakeServer(), one_by_one = MakeServer();
      together->Run(first);
      one_by_one->Run(first);
      std::vector<RequestHandle> handles;
      handles.reserve(5);
      for (int i = 0; i < 5; ++i) handles.push_back(together->Add(next(i)));
      together->RunToEnd();
      for (int i = 0; i < 5; ++i)
        EXPECT_EQ((*together)[handles[i]].tokens, one_by_one->Run(next(i)).tokens) << i;
    }
    if (std::get<0>(GetParam()) == "cuda") break;
  }
}

TEST_P(SharedPagesTest, ContextsHoldOneCopyAndTails) {
  const auto server = MakeServer();
  Request first = MakeRequest(Tokens(160, 1), "snapkv", 7, 80);
  first.keep_as.handle = "kept";
  first.prefill_only = true;
  first.stopping.max_tokens = 1;
  server->Run(first);
  for (int i = 0; i < 6; ++i) {
    Request request = MakeRequest(Tokens(2, 50 + i), "full", 20 + i, 0);
    request.context = "kept";
    request.stopping.max_tokens = 10;
    server->Add(request);
  }
  int most = 0;
  while (!server->Empty()) {
    server->Step();
    most = std::max(most, Pages(*server));
  }
  const bool windowed = model_->config().KindOf(0).window > 0;
  if (!windowed) {
    EXPECT_EQ(most, Heads() * (5 + 6) + 6 * ((6 * Heads() + 15) / 16))
        << "80 entries, and 11 more of each, and pages for the scores of 16";
  }
  EXPECT_LT(most, Heads() * 6 * 6);
}

}  // namespace
}  // namespace hydrant
