// Scheduler and engine together: for every policy, a request that continues from an offloaded cache
// gets the same result as with a replay of all earlier tokens: the same tokens, kept positions and
// scores, bit for bit (--batch-invariant).
#include <gtest/gtest.h>

#include "engine/cache/cache_plan.h"
#include "tests/device.h"
#include "tests/engine/run/random_model.h"
#include "tests/integration/driven_server.h"

namespace hydrant {
namespace {

class ContextTest : public ::testing::TestWithParam<std::tuple<std::string, Family>> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(std::get<0>(GetParam())); }

  std::unique_ptr<Server> MakeServer(int64_t context_memory_bytes, int num_blocks = 4000,
                                     int block_size = 16) const {
    EngineOptions options =
        InvariantOptions(std::get<0>(GetParam()), std::get<1>(GetParam()).kv_dtype);
    options.num_blocks_override = num_blocks;
    options.block_size = block_size;
    options.context_memory_bytes = context_memory_bytes;
    return std::make_unique<Server>(model_, options);
  }

  std::vector<TokenId> Tokens(int count, uint64_t seed) const {
    return RandomTokens(count, model_->config().vocab_size, seed);
  }
  Request MakeRequest(int prompt_tokens, const std::string& policy, uint64_t seed) const {
    Request request;
    request.prompt = Tokens(prompt_tokens, seed);
    request.cache.policy = policy;
    if (policy != "full") request.cache.max_cache_tokens = 40;
    request.sampling.temperature = 0.8;
    request.sampling.seed = seed;
    request.stopping.max_tokens = 12;
    request.stopping.ignore_eos = true;
    request.keep_as.handle = "kept " + std::to_string(seed);
    return request;
  }
  // A request that continues a context.
  Request Next(const std::string& context, uint64_t seed) const {
    Request request = MakeRequest(25, "full", seed);
    request.cache = CacheSpec();
    request.context = context;
    return request;
  }

  // Runs two turns; the second continues from memory on one server, and prefills all on another.
  void Compare(const Request& first, const Request& next_like) {
    const auto with = MakeServer(64 << 20), without = MakeServer(0);
    const Answer answer = with->Run(first);
    ASSERT_EQ(answer.context, first.keep_as.handle);
    const std::string file = with->Save({"", answer.context});
    Request next = next_like;
    next.context = answer.context;
    const Request from_another = next;
    ASSERT_FALSE(with->contexts().Resolve(&next).has_value());
    const Answer from_memory = with->Run(next);
    const Answer kept = with->LastCache();
    const Answer read_again = without->Run(next);
    EXPECT_EQ(read_again.context, "") << "there is no memory for it";
    EXPECT_EQ(from_memory.tokens.size(), 12u);
    EXPECT_EQ(from_memory.tokens, read_again.tokens);
    const Answer expected = without->LastCache();
    EXPECT_EQ(kept.positions, expected.positions);
    EXPECT_EQ(kept.scores, expected.scores);
    EXPECT_EQ(from_memory.usage.kv_tokens_kept, read_again.usage.kv_tokens_kept);
    EXPECT_EQ(from_memory.usage.prompt_tokens, static_cast<int>(next.prompt.size()));
    EXPECT_EQ(from_memory.usage.cached_tokens,
              static_cast<int>(first.prompt.size() + answer.tokens.size()) - !first.prefill_only);
    FromFile(file, from_another, from_memory, kept);
  }

  // Continues from the file on another server, with the same result. Its pages have another size.
  void FromFile(const std::string& file, Request next, const Answer& from_memory,
                const Answer& kept) {
    const auto another = MakeServer(64 << 20, 8000, 8);
    ASSERT_TRUE(another->Load(file).ok()) << another->Load(file);
    EXPECT_EQ(another->Save({"", next.context}), file);
    ASSERT_FALSE(another->contexts().Resolve(&next).has_value());
    const Answer answer = another->Run(next);
    EXPECT_EQ(answer.tokens, from_memory.tokens);
    EXPECT_EQ(answer.usage.cached_tokens, from_memory.usage.cached_tokens);
    const Answer cache = another->LastCache();
    EXPECT_EQ(cache.positions, kept.positions);
    EXPECT_EQ(cache.scores, kept.scores);
  }

  std::shared_ptr<const ModelSource> model_ = MakeRandomModel(
      InFamily(SmallConfig(6, 2, std::get<1>(GetParam()).head_dim), std::get<1>(GetParam()).name),
      5);
};

INSTANTIATE_TEST_SUITE_P(Devices, ContextTest, DevicesAndFamilies(), NameOfDeviceAndFamily);

TEST_P(ContextTest, ContinuationEqualsOneUninterruptedRun) {
  for (const PolicyInfo& policy : ListPolicies()) {
    SCOPED_TRACE(policy.name);
    Compare(MakeRequest(150, policy.name, 1), Next("", 2));
  }
}

// A ratio applies to all tokens of the conversation so far.
TEST_P(ContextTest, AnotherTurnRaisesTheBudget) {
  for (const PolicyInfo& policy : ListPolicies()) {
    if (policy.name == "full") continue;
    SCOPED_TRACE(policy.name);
    Request first = MakeRequest(150, policy.name, 1);
    first.cache.max_cache_tokens.reset();
    first.cache.cache_ratio = 0.3;
    first.cache.min_cache_tokens = 8;
    Compare(first, Next("", 2));
  }
}

// A cap includes generated tokens; without one they are added to the turn's budget.
TEST_P(ContextTest, EveryTurnCountsAllBeforeIt) {
  for (const auto& [policy, generated] : {std::pair("h2o", 0), std::pair("snapkv", 11)}) {
    SCOPED_TRACE(policy);
    const auto server = MakeServer(64 << 20), without = MakeServer(0);
    Request request = MakeRequest(100, policy, 1);
    request.cache.max_cache_tokens.reset();
    request.cache.cache_ratio = 0.25;
    request.cache.min_cache_tokens = 8;
    for (int turn = 0; turn < 4; ++turn) {
      SCOPED_TRACE(turn);
      request.keep_as.handle = "turn " + std::to_string(turn);
      Request again = request;
      ASSERT_FALSE(server->contexts().Resolve(&again).has_value());
      const Answer answer = server->Run(request);
      EXPECT_EQ(answer.usage.kv_tokens_kept, (answer.usage.prompt_tokens + 3) / 4 + generated);
      // A server without the context produces the same tokens.
      EXPECT_EQ(without->Run(again).tokens, answer.tokens);
      request = Next(request.keep_as.handle, 10 + turn);
    }
  }
}

// A first prompt within its budget; the second turn exceeds it.
TEST_P(ContextTest, ALongTurnAfterAShortOne) {
  for (const char* policy : {"snapkv", "ada-snapkv", "pyramidkv", "echo", "auto"}) {
    SCOPED_TRACE(policy);
    Request first = MakeRequest(20, policy, 1);
    first.cache.max_cache_tokens.reset();
    first.cache.cache_ratio = 0.25;
    first.cache.min_cache_tokens = 30;
    Request next = Next("", 2);
    next.prompt = Tokens(170, 3);
    Compare(first, next);
    const auto server = MakeServer(64 << 20);
    next.context = server->Run(first).context;
    const Answer answer = server->Run(next);
    if (std::string(policy) == "pyramidkv") continue;  // budgets differ by layer
    const int64_t wanted = (answer.usage.prompt_tokens + 3) / 4 + 11;
    EXPECT_NEAR(answer.usage.kv_tokens_kept_mean, static_cast<double>(wanted), 1)
        << "shares are rounded down";
  }
}

// Turns longer and shorter than the model's window (40), one after another: a turn takes one step
// for its cache to come back and one to be read. A server without the cache, which reads all turns
// again, answers the same.
TEST_P(ContextTest, ATurnIsReadInOneStep) {
  for (const char* policy : {"full", "h2o", "snapkv", "ada-snapkv"}) {
    SCOPED_TRACE(policy);
    const auto server = MakeServer(64 << 20), without = MakeServer(0);
    std::string context = server->Run(MakeRequest(60, policy, 1)).context;
    for (const int count : {200, 30, 90}) {
      SCOPED_TRACE(testing::Message() << "a turn of " << count);
      Request next = Next(context, count);
      next.prompt = Tokens(count, count);
      Request again = next;
      ASSERT_FALSE(server->contexts().Resolve(&again).has_value());
      const RequestHandle handle = server->Add(next);
      int steps = 0;
      for (; (*server)[handle].tokens.empty() && steps < 10; ++steps) server->Step();
      EXPECT_LE(steps, 2);
      server->RunToEnd();
      EXPECT_EQ((*server)[handle].tokens.size(), 12u);
      EXPECT_EQ((*server)[handle].tokens, without->Run(again).tokens);
      context = (*server)[handle].context;
    }
  }
}

// A prefill-only context, for any number of questions.
TEST_P(ContextTest, ContinuesFromAPrefilledContext) {
  for (const PolicyInfo& policy : ListPolicies()) {
    SCOPED_TRACE(policy.name);
    Request request = MakeRequest(150, policy.name, 1);
    request.prefill_only = true;
    request.stopping.max_tokens = 1;
    Compare(request, Next("", 2));
  }
}

TEST_P(ContextTest, ContinuesWithEveryRequestOption) {
  std::vector<Request> requests;
  const auto add = [&](const std::string& policy) -> Request& {
    return requests.emplace_back(MakeRequest(150, policy, 3));
  };
  add("co2").cache.params = {{"measurement_steps", "5"}};
  add("co2").cache.params = {{"measurement_steps", "20"}};  // cut in the second turn
  add("co2").cache.params = {{"self_tuning", "true"}, {"budget_scope", "model"}};
  add("snapkv").cache.params = {{"decode_cap", "45"}};
  add("h2o").cache.params = {{"budget_scope", "model"}};
  add("ada-snapkv").cache.min_retained_mass = 0.8;
  add("scissorhands").cache.params = {{"drop_tokens", "7"}};
  if (model_->config().RotaryDim() > 0) add("streaming").cache.params = {{"rolling", "true"}};
  add("snapkv").question_tokens = 20;
  add("full").stopping.max_tokens = 1;
  for (const Request& request : requests) {
    SCOPED_TRACE(testing::Message()
                 << request.cache.policy << ", "
                 << (request.cache.params.empty() ? "" : request.cache.params.begin()->first));
    Request next = Next("", 4);
    next.sampling.repetition_penalty = 1.3;
    next.sampling.presence_penalty = 0.5;
    Compare(request, next);
  }
}

// Three requests continue one context, and a fourth continues one of the three.
TEST_P(ContextTest, CanBeForked) {
  const auto server = MakeServer(64 << 20), without = MakeServer(0);
  const std::string trunk = server->Run(MakeRequest(100, "h2o", 1)).context;
  std::vector<std::string> branches;
  for (uint64_t seed = 10; seed < 13; ++seed)
    branches.push_back(server->Run(Next(trunk, seed)).context);
  Request next = Next(branches[1], 20);
  ASSERT_FALSE(server->contexts().Resolve(&next).has_value());
  EXPECT_EQ(next.prompt.size(), 100u + 12 + 25 + 12 + 25);
  EXPECT_EQ(server->Run(next).tokens, without->Run(next).tokens);
  EXPECT_EQ(server->Stats().contexts, 5);
}

TEST_P(ContextTest, TheLongestThatAConversationContinuesIsFound) {
  const auto server = MakeServer(64 << 20);
  Request first = MakeRequest(60, "h2o", 1);
  const Answer answer = server->Run(first);
  Request whole = first;
  whole.find_context = true;
  whole.keep_as.handle = "second";
  whole.prompt.insert(whole.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  EXPECT_EQ(server->Run(whole).usage.cached_tokens, 0) << "nothing follows";
  whole.prompt.push_back(3);
  const Answer second = server->Run(whole);
  EXPECT_EQ(second.usage.cached_tokens, 71);
  whole.prompt.insert(whole.prompt.end(), second.tokens.begin(), second.tokens.end());
  whole.prompt.push_back(4);
  EXPECT_EQ(server->Run(whole).usage.cached_tokens, 84);
  Request other = whole;
  other.cache.max_cache_tokens = 41;
  EXPECT_EQ(server->Run(other).usage.cached_tokens, 0) << "another budget";
  other = whole;
  other.cache_salt = "salt";
  EXPECT_EQ(server->Run(other).usage.cached_tokens, 0) << "another's";
  other = whole;
  other.prompt[10] ^= 1;
  EXPECT_EQ(server->Run(other).usage.cached_tokens, 0) << "another conversation";
}

// Little memory for contexts and a small pool: a request without its context prefills it again.
TEST_P(ContextTest, ContinuesInABatch) {
  const auto server = MakeServer(256 << 10, 200), without = MakeServer(0);
  const std::vector<std::string> policies = {"full", "h2o", "snapkv", "local", "tova"};
  std::vector<Request> turns;
  turns.reserve(6);
  for (int i = 0; i < 6; ++i) turns.push_back(MakeRequest(40 + 5 * i, policies[i % 5], 1 + i));
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<RequestHandle> handles;
    handles.reserve(turns.size());
    for (const Request& request : turns) handles.push_back(server->Add(request));
    server->RunToEnd();
    for (size_t i = 0; i < turns.size(); ++i) {
      Request alone = turns[i];
      EXPECT_EQ((*server)[handles[i]].tokens, without->Run(alone).tokens)
          << "turn " << turn << ", conversation " << i;
      Request next = Next((*server)[handles[i]].context, 100 * turn + i);
      if (next.context.empty() || server->contexts().Resolve(&next).has_value()) {
        next = turns[i];  // the same request again
        next.keep_as.handle += "'";
      }
      turns[i] = next;
    }
  }
  EXPECT_GT(server->Stats().contexts_evicted, 0u);
}

TEST_P(ContextTest, AnOversizedContextEvictsNoOther) {
  const auto server = MakeServer(56 << 10);
  EXPECT_NE(server->Run(MakeRequest(30, "full", 1)).context, "");
  EXPECT_EQ(server->Run(MakeRequest(450, "full", 2)).context, "");
  EXPECT_EQ(server->Stats().contexts, 1);
  EXPECT_EQ(server->Stats().contexts_evicted, 0u);
}

TEST_P(ContextTest, RefusalsSayWhy) {
  const auto server = MakeServer(64 << 20);
  const Answer answer = server->Run(MakeRequest(60, "h2o", 1));
  const std::string handle = answer.context;
  std::vector<TokenId> whole = Tokens(60, 1);
  whole.insert(whole.end(), answer.tokens.begin(), answer.tokens.end());
  whole.push_back(3);
  const auto refusal = [&](auto spoil) {
    Request request = Next(handle, 2);
    spoil(request);
    const std::optional<Failed> failed = server->contexts().Resolve(&request);
    return failed.has_value() ? failed->reason + " " + std::string(failed->status.message()) : "";
  };
  EXPECT_EQ(refusal([](Request&) {}), "");
  EXPECT_EQ(refusal([&](Request& r) {
              r.whole_conversation = true;
              r.prompt = whole;
            }),
            "");
  EXPECT_EQ(
      refusal([](Request& r) { r.context = "no"; }),
      "UNKNOWN_CONTEXT context: no is unknown here; it may have expired, or left for newer ones: "
      "send the whole conversation");
  EXPECT_EQ(refusal([](Request& r) { r.cache_salt = "x"; }).substr(0, 15), "UNKNOWN_CONTEXT");
  EXPECT_EQ(refusal([](Request& r) { r.cache.policy = "local"; }),
            "INVALID cache: the context's policy is h2o, and stays what it is; leave the fields "
            "unset");
  EXPECT_EQ(refusal([](Request& r) { r.question_tokens = 3; }),
            "INVALID cache.question_tokens: a context has been compressed already");
  EXPECT_EQ(refusal([](Request& r) { r.whole_conversation = true; }),
            "INVALID prompt: does not continue context " + handle +
                ": it must begin with its 72 tokens, and have more");
}

// Tokens of an answer's end <e>
//  that are missing after contexts that contain all, a part or none of it.
TEST(MissingEnd, IsTheEndThatTheContextLacks) {
  const std::vector<TokenId> end = {7, 8};
  Context context;
  context.first_plan.prompt.tokens = 3;
  const auto missing = [&](std::vector<TokenId> tokens) {
    context.tokens = std::move(tokens);
    const std::span<const TokenId> rest = MissingEnd(context, end);
    return std::vector<TokenId>(rest.begin(), rest.end());
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(missing({1, 2, 3}), Ids()) << "a document";
  EXPECT_EQ(missing({1, 2, 8}), Ids()) << "that ends as an answer's end does";
  EXPECT_EQ(missing({1, 2, 7}), Ids({8}));
  EXPECT_EQ(missing({1, 2, 3, 4}), end) << "an answer that was cut off";
  EXPECT_EQ(missing({1, 2, 3, 4, 7}), Ids({8}));
  EXPECT_EQ(missing({1, 2, 3, 7, 8}), Ids());
  context.append_ranges = {{3, 5}};
  EXPECT_EQ(missing({1, 2, 3, 4, 5}), Ids()) << "a question that was only read";
  EXPECT_EQ(missing({1, 2, 3, 4, 5, 6}), end);
  context.tokens = {7};
  EXPECT_TRUE(MissingEnd(context, {}).empty());
}

}  // namespace
}  // namespace hydrant
