// Prompts that end with a question: the tokens before it are compressed without it; in a chat
// the question can be the last message. Over a real engine, where the answer depends on the
// kept entries.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/server/random_model_server.h"

namespace hydrant {
namespace {

constexpr uint32_t kOutput = 32;
constexpr int kShare = 4;  // one entry in four is kept

struct Talk {
  std::string name;
  std::vector<std::string> roles;  // of the messages
  bool open;                       // the prompt ends with the beginning of an answer
};

// The token count of LineTemplate's text, computed from its rule: "<s>", a line a message, and
// "assistant:" if it is open.
size_t TokensOf(const v1::Chat& chat, int messages) {
  size_t tokens = 1;
  for (int i = 0; i < messages; ++i)
    tokens += chat.messages(i).role().size() + chat.messages(i).content().size() + 2;
  return tokens;
}

v1::GenerateRequest MakeRequest(const std::string& policy) {
  v1::GenerateRequest request;
  request.mutable_stopping()->set_max_tokens(kOutput);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_cache()->set_cache_policy(policy);
  request.mutable_cache()->set_cache_ratio(1.0 / kShare);
  request.mutable_cache()->set_min_cache_tokens(0);
  return request;
}

class Question : public testing::TestWithParam<std::string> {
 protected:
  Question() : server_(/*full_caches=*/2) {}

  v1::Chat MakeChat(const Talk& talk) {
    v1::Chat chat;
    for (const std::string& role : talk.roles) {
      v1::ChatMessage* message = chat.add_messages();
      message->set_role(role);
      const size_t length = 60 + random_() % 140;
      while (message->content().size() < length)
        message->mutable_content()->push_back(static_cast<char>('a' + random_() % 26));
    }
    if (!talk.open) chat.set_add_generation_prompt(false);
    return chat;
  }

  v1::TokenIds Tokenize(const v1::Chat& chat) {
    v1::TokenizeRequest request;
    *request.mutable_chat() = chat;
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(server_.stub->Tokenize(&context, request, &response).ok());
    v1::TokenIds ids;
    *ids.mutable_ids() = response.token_ids();
    return ids;
  }

  StreamResult Run(const v1::GenerateRequest& request) {
    StreamResult result = RunToEnd(*server_.stub, request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.token_ids.size(), kOutput);
    if (!result.usage.has_value()) result.usage.emplace();
    if (result.events.empty()) result.events.emplace_back();
    return result;
  }

  // C is computed from the context, and every head keeps that many of its entries on average.
  void ExpectCompressed(const StreamResult& result, size_t context, size_t prompt) {
    const uint64_t budget = (context + kShare - 1) / kShare;
    EXPECT_EQ(result.events[0].accepted().cache_tokens(), budget);
    EXPECT_EQ(result.usage->kv_entries_of_prompt(), server_.NumHeads() * budget);
    EXPECT_EQ(result.usage->prompt_tokens(), prompt);
    // No entry of the question is evicted if generated tokens are appended; a capped head stays at
    // C. The last token is never fed back.
    if (GetParam() == "snapkv") {
      EXPECT_EQ(result.usage->kv_tokens_kept(), budget + (prompt - context) + kOutput - 1);
    }
    if (GetParam() == "h2o") {
      EXPECT_EQ(result.usage->kv_tokens_kept(), budget);
    }
  }

  static constexpr unsigned kSeed = 20250607;
  std::mt19937 random_{kSeed};
  RandomModelServer server_;
};

TEST_P(Question, OfAChatIsItsLastMessage) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  bool mattered = false;
  for (const Talk& talk : {Talk{"TwoOfTheUser", {"user", "user"}, true},
                           Talk{"AThirdTurn", {"user", "assistant", "user"}, true},
                           // The beginning of an answer is not part of the context.
                           Talk{"AnAnswer", {"user", "assistant"}, false},
                           Talk{"AnAnswerToGoOn", {"user", "user", "assistant"}, true}}) {
    SCOPED_TRACE(talk.name);
    const v1::Chat chat = MakeChat(talk);
    const size_t context = TokensOf(chat, chat.messages_size() - 1);
    const size_t prompt =
        TokensOf(chat, chat.messages_size()) + (talk.open ? std::string("assistant:").size() : 0);
    v1::GenerateRequest request = MakeRequest(GetParam());
    *request.mutable_chat() = chat;
    request.mutable_cache()->set_question_agnostic(true);
    const StreamResult agnostic = Run(request);
    ExpectCompressed(agnostic, context, prompt);

    request.mutable_cache()->clear_question_agnostic();
    request.mutable_cache()->set_question_tokens(static_cast<uint32_t>(prompt - context));
    const StreamResult counted = Run(request);
    ExpectCompressed(counted, context, prompt);
    EXPECT_EQ(counted.token_ids, agnostic.token_ids);

    *request.mutable_token_ids() = Tokenize(chat);
    ASSERT_EQ(request.token_ids().ids_size(), static_cast<int>(prompt));
    const StreamResult tokenized = Run(request);
    ExpectCompressed(tokenized, context, prompt);
    EXPECT_EQ(tokenized.token_ids, agnostic.token_ids);

    // With the question visible: C of the whole prompt.
    request.mutable_cache()->clear_question_tokens();
    const StreamResult seen = Run(request);
    ExpectCompressed(seen, prompt, prompt);
    mattered = mattered || seen.token_ids != agnostic.token_ids;
  }
  EXPECT_TRUE(mattered) << "the answers do not tell what stayed";
}

TEST_P(Question, IsOffByDefault) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const v1::Chat chat = MakeChat({"", {"user", "user"}, false});
  v1::GenerateRequest request = MakeRequest(GetParam());
  *request.mutable_chat() = chat;
  const size_t prompt = TokensOf(chat, 2);
  const StreamResult unset = Run(request);
  ExpectCompressed(unset, prompt, prompt);
  request.mutable_cache()->set_question_agnostic(false);
  request.mutable_cache()->set_question_tokens(0);
  const StreamResult zero = Run(request);
  ExpectCompressed(zero, prompt, prompt);
  EXPECT_EQ(zero.token_ids, unset.token_ids);
}

// The first message reports the number of kept entries, or none.
TEST(CacheTokens, AreSaidWhereTheyAreKnown) {
  RandomModelServer server(/*full_caches=*/2);
  const auto run = [&](const std::string& policy, const auto& set) {
    v1::GenerateRequest request = TextRequest(std::string(699, 'x'), 1);  // plus BOS
    request.mutable_cache()->set_cache_policy(policy);
    set(request.mutable_cache());
    StreamResult result = RunToEnd(*server.stub, request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    if (result.events.empty()) result.events.emplace_back();
    if (!result.usage.has_value()) result.usage.emplace();
    return result;
  };
  const auto said = [](const StreamResult& result) { return result.events[0].accepted(); };
  const auto kept = [&](const StreamResult& result) {
    return result.usage->kv_entries_of_prompt() / server.NumHeads();
  };
  // The pool has room for all of it: no budget is needed.
  const StreamResult open = run("auto", [](v1::Cache*) {});
  EXPECT_FALSE(said(open).has_cache_tokens()) << said(open).cache_tokens();
  EXPECT_EQ(kept(open), 700u);
  const StreamResult question_later =
      run("auto", [](v1::Cache* cache) { cache->set_question_tokens(100); });
  EXPECT_FALSE(said(question_later).has_cache_tokens()) << said(question_later).cache_tokens();
  for (const char* policy : {"auto", "h2o"}) {
    const StreamResult quality = run(policy, [](v1::Cache* cache) {
      cache->set_cache_ratio(0.2);
      cache->set_min_retained_mass(1.0);
    });
    EXPECT_FALSE(said(quality).has_cache_tokens()) << policy;
    EXPECT_GT(kept(quality), 600u) << policy;  // nearly all entries, to retain all attention
  }
  for (const char* policy : {"auto", "h2o", "snapkv", "pyramidkv", "ada-snapkv", "reconstruct"}) {
    const StreamResult known = run(policy, [](v1::Cache* cache) {
      cache->set_cache_ratio(0.2);
      cache->set_question_tokens(100);
    });
    EXPECT_EQ(said(known).cache_tokens(), 128u) << policy;  // of 600: 120, raised to the minimum
    EXPECT_EQ(kept(known), 128u) << policy;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Question,
                         testing::Values("h2o", "snapkv", "reconstruct", "echo", "auto"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hydrant
