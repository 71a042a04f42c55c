// Scheduler and engine together: cached prefixes change no result. Tokens, kept positions and
// scores equal those of a server that prefills every prompt completely, bit for bit
// (--batch-invariant), for every policy and any length of the shared prefix.
#include <gtest/gtest.h>

#include "engine/cache/cache_plan.h"
#include "tests/device.h"
#include "tests/engine/run/random_model.h"
#include "tests/integration/driven_server.h"

namespace hydrant {
namespace {

class PrefixCachingTest : public ::testing::TestWithParam<std::tuple<std::string, Family>> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(std::get<0>(GetParam())); }

  EngineOptions Options(bool prefix_caching) const {
    EngineOptions options =
        InvariantOptions(std::get<0>(GetParam()), std::get<1>(GetParam()).kv_dtype);
    options.prefix_cache_memory_bytes = prefix_caching ? 16 << 20 : 0;
    return options;
  }
  std::unique_ptr<Server> MakeServer(bool prefix_caching) const {
    return std::make_unique<Server>(model_, Options(prefix_caching));
  }
  int vocab() const { return model_->config().vocab_size; }

  static Request MakeRequest(std::vector<TokenId> prompt, const std::string& policy) {
    Request request;
    request.prompt = std::move(prompt);
    request.cache.policy = policy;
    if (policy != "full") request.cache.max_cache_tokens = 40;
    // Beside windows the default is a budget for each head.
    if (policy == "reconstruct") request.cache.params = {{"budget_scope", "model"}};
    request.sampling.temperature = 0.8;
    request.sampling.seed = 9;
    request.stopping.max_tokens = 12;
    request.stopping.ignore_eos = true;
    return request;
  }
  static void ExpectSame(const Answer& actual, const Answer& expected) {
    EXPECT_EQ(actual.tokens, expected.tokens);
    EXPECT_EQ(actual.positions, expected.positions);
    EXPECT_EQ(actual.scores, expected.scores);
    EXPECT_EQ(actual.embedding, expected.embedding);
    EXPECT_EQ(actual.usage.kv_entries_of_prompt, expected.usage.kv_entries_of_prompt);
    EXPECT_EQ(actual.usage.retained_mass.has_value(), expected.usage.retained_mass.has_value());
    if (actual.usage.retained_mass.has_value() && expected.usage.retained_mass.has_value()) {
      EXPECT_EQ(actual.usage.retained_mass->mean, expected.usage.retained_mass->mean);
    }
  }

  std::shared_ptr<const ModelSource> model_ = MakeRandomModel(
      InFamily(SmallConfig(6, 2, std::get<1>(GetParam()).head_dim), std::get<1>(GetParam()).name),
      5);
};

INSTANTIATE_TEST_SUITE_P(Devices, PrefixCachingTest,
                         DevicesWith({{"llama", DType::kF16},
                                      {"llama", DType::kE4M3},
                                      {"llama", DType::kQ8_0, 32},
                                      {"llama", DType::kQ4_0, 32},
                                      {"opt", DType::kBF16},
                                      {"gemma3_text", DType::kF16},
                                      {"qwen3_moe", DType::kF32}}),
                         NameOfDeviceAndFamily);

// A prompt of 150 tokens, and others that share 0 tokens, 1, a block less one, a block, a block and
// one, all of its whole blocks, or all of its tokens.
TEST_P(PrefixCachingTest, ChangesNoBit) {
  constexpr int kTokens = 150;
  const std::vector<TokenId> first = RandomTokens(kTokens, vocab(), 1);
  for (const PolicyInfo& policy : ListPolicies()) {
    const auto with = MakeServer(true), without = MakeServer(false);
    with->Run(MakeRequest(first, policy.name));
    for (const int shared : {0, 1, 31, 32, 33, 128, 149, kTokens}) {
      SCOPED_TRACE(testing::Message() << policy.name << ", " << shared << " tokens in common");
      std::vector<TokenId> prompt = RandomTokens(kTokens, vocab(), 100 + shared);
      std::copy_n(first.begin(), shared, prompt.begin());
      const Answer actual = with->Run(MakeRequest(prompt, policy.name));
      ExpectSame(actual, without->Run(MakeRequest(prompt, policy.name)));
      // The last token is always computed.
      const int there = std::min(shared, kTokens - 1) / kPrefixBlockTokens * kPrefixBlockTokens;
      EXPECT_EQ(actual.usage.cached_tokens + actual.usage.reread_tokens, there);
      if (policy.name == "full") {
        EXPECT_EQ(actual.usage.reread_tokens, 0);
      }
      if (policy.name == "snapkv" || policy.name == "echo") {
        EXPECT_EQ(actual.usage.cached_tokens, std::min(there, (kTokens - 32) / 32 * 32));
      }
      // From a checkpoint of sums: where two earlier prompts diverged, or at the first prompt's
      // latest start or its end.
      if (policy.name == "h2o") {
        EXPECT_EQ(actual.usage.cached_tokens, shared <= 32 ? 0 : shared == 33 ? 32 : 96);
      }
    }
    EXPECT_EQ(without->Stats().prefix_cache.queried_tokens, 0u);
  }
}

// Longer prompts have checkpoints of sums at several positions, each of several blocks. Prompts
// continue where an earlier one ended, diverge from it, or diverge where another did.
TEST_P(PrefixCachingTest, GoesOnFromSumsAndQueries) {
  constexpr int kTokens = 1100;
  ModelConfig config = model_->config();
  config.max_context = 1280;
  model_ = MakeRandomModel(config, 5);
  const std::vector<TokenId> first = RandomTokens(kTokens, vocab(), 1);
  for (const char* policy : {"h2o", "scissorhands", "echo"}) {
    const auto with = MakeServer(true), without = MakeServer(false);
    with->Run(MakeRequest(first, policy));
    for (const auto& [shared, tokens, h2o, echo] : {std::tuple{1100, 1190, 1088, 1088},
                                                    {1000, 1190, 512, 992},
                                                    {1010, 1150, 992, 992},
                                                    {1100, 1100, 1056, 1056},
                                                    {500, 1100, 0, 480}}) {
      SCOPED_TRACE(testing::Message() << policy << ", " << shared << " tokens in common");
      std::vector<TokenId> prompt = RandomTokens(tokens, vocab(), 100 + tokens + shared);
      std::copy_n(first.begin(), shared, prompt.begin());
      const Answer actual = with->Run(MakeRequest(prompt, policy));
      ExpectSame(actual, without->Run(MakeRequest(prompt, policy)));
      const std::string_view name = policy;
      if (name == "h2o") {
        EXPECT_EQ(actual.usage.cached_tokens, h2o);
      } else if (name == "echo") {
        EXPECT_EQ(actual.usage.cached_tokens, echo);
      }
    }
  }
}

// Blocks that one policy has stored serve the others.
TEST_P(PrefixCachingTest, ServesEveryPolicy) {
  const std::vector<TokenId> first = RandomTokens(150, vocab(), 1);
  const auto with = MakeServer(true), without = MakeServer(false);
  with->Run(MakeRequest(first, "h2o"));
  for (const PolicyInfo& policy : ListPolicies()) {
    SCOPED_TRACE(policy.name);
    std::vector<TokenId> prompt = first;
    prompt.resize(170, 3);
    ExpectSame(with->Run(MakeRequest(prompt, policy.name)),
               without->Run(MakeRequest(prompt, policy.name)));
  }
}

TEST_P(PrefixCachingTest, WithEveryRequestOption) {
  const std::vector<TokenId> first = RandomTokens(150, vocab(), 1);
  std::vector<Request> requests;
  for (const char* policy : {"snapkv", "reconstruct", "co2", "auto", "streaming", "full"}) {
    Request request = MakeRequest(first, policy);
    request.question_tokens = 20;
    request.sampling.repetition_penalty = 1.3;
    requests.push_back(request);
  }
  requests.push_back(MakeRequest(first, "co2"));
  requests.back().cache.params = {{"self_tuning", "true"}, {"budget_scope", "model"}};
  requests.push_back(MakeRequest(first, "snapkv"));
  requests.back().cache.min_retained_mass = 0.8;
  if (model_->config().RotaryDim() > 0) {
    requests.push_back(MakeRequest(first, "streaming"));
    requests.back().cache.params = {{"rolling", "true"}};
  }
  for (const EmbeddingPooling pooling : {EmbeddingPooling::kLast, EmbeddingPooling::kMean}) {
    requests.push_back(MakeRequest(first, "local"));
    requests.back().pooling = pooling;
    requests.back().stopping.max_tokens = 1;
  }
  const auto with = MakeServer(true), without = MakeServer(false);
  with->Run(MakeRequest(first, "full"));
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(testing::Message() << i << ", " << requests[i].cache.policy);
    ExpectSame(with->Run(requests[i]), without->Run(requests[i]));
  }
}

TEST_P(PrefixCachingTest, NotAcrossSaltsAndNotWhereItIsOff) {
  const std::vector<TokenId> prompt = RandomTokens(100, vocab(), 1);
  const auto server = MakeServer(true);
  Request request = MakeRequest(prompt, "full");
  request.prefix_caching = false;
  server->Run(request);
  EXPECT_EQ(server->Stats().prefix_cache.filled_blocks, 0);
  request.prefix_caching = true;
  request.cache_salt = "a";
  EXPECT_EQ(server->Run(request).usage.cached_tokens, 0);
  EXPECT_EQ(server->Run(request).usage.cached_tokens, 96);
  request.cache_salt = "b";
  EXPECT_EQ(server->Run(request).usage.cached_tokens, 0);
  request.prefix_caching = false;
  request.cache_salt = "a";
  EXPECT_EQ(server->Run(request).usage.cached_tokens, 0);
}

// Short suffixes of prompts with a shared prefix lie apart in the arena and are prefilled in one
// step: gathering their rows changes nothing.
TEST_P(PrefixCachingTest, ShortEndsAreReadTogether) {
  const std::vector<TokenId> first = RandomTokens(150, vocab(), 1);
  const auto with = MakeServer(true), without = MakeServer(false);
  for (const char* policy : {"full", "local", "snapkv", "h2o", "echo"})
    with->Run(MakeRequest(first, policy));
  const uint64_t steps = with->Stats().steps;
  std::vector<Request> requests;
  std::vector<RequestHandle> handles;
  for (const char* policy : {"full", "local", "echo", "snapkv", "echo", "h2o", "full"}) {
    std::vector<TokenId> prompt = first;
    prompt.resize(152 + 3 * requests.size(), static_cast<TokenId>(requests.size()));
    requests.push_back(MakeRequest(prompt, policy));
    handles.push_back(with->Add(requests.back()));
  }
  with->RunToEnd();
  // The first step prefills all prompts and samples a token each; 11 more steps take the rest.
  EXPECT_EQ(with->Stats().steps - steps, 12u);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i << ", " << requests[i].cache.policy);
    const Answer& actual = (*with)[handles[i]];
    const Answer expected = without->Run(requests[i]);
    EXPECT_GE(actual.usage.cached_tokens, 96);
    EXPECT_EQ(actual.tokens, expected.tokens);
    EXPECT_EQ(actual.usage.kv_entries_of_prompt, expected.usage.kv_entries_of_prompt);
  }
}

// Many requests at a time, in a prefix cache that holds a part of their blocks.
TEST_P(PrefixCachingTest, InCompanyWithLittleRoom) {
  EngineOptions options = Options(true);
  const int64_t values =
      int64_t{12 * 32 * 2} * model_->config().num_layers * model_->config().KvDim();
  options.prefix_cache_memory_bytes =
      static_cast<int64_t>(BytesOf(*options.kv_cache_dtype, values));
  Server with(model_, options), without(model_, Options(false));
  const std::vector<std::string> policies = {"full", "snapkv",     "h2o", "local",
                                             "echo", "ada-snapkv", "co2"};
  std::vector<std::pair<RequestHandle, RequestHandle>> handles;
  for (int i = 0; i < 40; ++i) {
    std::vector<TokenId> prompt = RandomTokens(40 + 7 * (i % 15), vocab(), 1 + i % 3);
    prompt.back() = static_cast<TokenId>(i);
    Request request = MakeRequest(prompt, policies[i % policies.size()]);
    request.sampling.seed = i;
    handles.emplace_back(with.Add(request), without.Add(request));
  }
  with.RunToEnd();
  without.RunToEnd();
  for (const auto& [a, b] : handles)
    EXPECT_EQ(with[a].tokens, without[b].tokens) << "request " << a;
  EXPECT_GT(with.Stats().prefix_cache.hit_tokens, 0u);
  EXPECT_GT(with.Stats().prefix_cache.evicted_blocks, 0u);
}

}  // namespace
}  // namespace hydrant
