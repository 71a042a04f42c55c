// Kept caches over the wire: continued by handle or found by the conversation, and refused with
// helpful errors.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/server/random_model_server.h"

namespace hydrant {
namespace {

constexpr uint32_t kOutput = 16;

class Conversation : public testing::Test {
 protected:
  Conversation() : server_(/*full_caches=*/4) {}

  static v1::GenerateRequest Asking(const std::string& policy) {
    v1::GenerateRequest request;
    request.mutable_stopping()->set_max_tokens(kOutput);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_sampling()->set_temperature(0);
    if (policy.empty()) return request;
    request.mutable_cache()->set_cache_policy(policy);
    if (policy != "full") request.mutable_cache()->set_max_cache_tokens(40);
    return request;
  }
  static v1::GenerateRequest WithText(v1::GenerateRequest request, const std::string& text) {
    request.set_text(text);
    return request;
  }
  static void AddMessage(v1::Chat* chat, const std::string& role, const std::string& content) {
    v1::ChatMessage* message = chat->add_messages();
    message->set_role(role);
    message->set_content(content);
  }

  StreamResult Run(const v1::GenerateRequest& request) {
    StreamResult result = RunToEnd(*server_.stub, request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    if (!result.usage.has_value()) result.usage.emplace();
    return result;
  }
  static std::string ContextOf(const StreamResult& result) {
    for (const v1::GenerateResponse& event : result.events) {
      if (event.has_finished()) return event.finished().context();
    }
    return "";
  }
  static uint32_t AcceptedTokens(const StreamResult& result) {
    return result.events.empty() ? 0 : result.events[0].accepted().prompt_tokens();
  }
  // Runs a first turn of 200 bytes.
  std::string Keep(const std::string& policy) {
    v1::GenerateRequest request = WithText(Asking(policy), std::string(200, 'k'));
    request.set_keep(true);
    return ContextOf(Run(request));
  }

  RandomModelServer server_;
};

TEST_F(Conversation, IsKeptOnRequest) {
  EXPECT_EQ(ContextOf(Run(WithText(Asking("h2o"), "some text"))), "");
  const std::string a = Keep("h2o"), b = Keep("h2o");
  EXPECT_EQ(a.substr(0, 4), "ctx-");
  EXPECT_EQ(a.size(), 4u + 32);
  EXPECT_NE(a, b);
}

TEST_F(Conversation, GoesOnFromAKeptCache) {
  for (const char* policy : {"full", "h2o", "snapkv"}) {
    v1::GenerateRequest request = WithText(Asking(policy), std::string(200, 'k'));
    request.set_keep(true);
    const StreamResult first = Run(request);
    const uint32_t seen = AcceptedTokens(first) + kOutput - 1;

    v1::GenerateRequest next = WithText(Asking(""), "and then?");
    next.set_context(ContextOf(first));
    const StreamResult second = Run(next);
    EXPECT_EQ(second.usage->cached_tokens(), seen) << policy;
    // The continuation has no BOS.
    EXPECT_EQ(AcceptedTokens(second), seen + 1 + std::string("and then?").size()) << policy;
    EXPECT_EQ(second.token_ids.size(), kOutput);
    EXPECT_EQ(Run(next).token_ids, second.token_ids) << "it may be gone on from again";
    if (std::string(policy) == "h2o") {
      EXPECT_EQ(second.usage->kv_tokens_kept(), 40u);
    }
  }
}

TEST_F(Conversation, AChatMustContinueItsContext) {
  v1::GenerateRequest request = Asking("h2o");
  AddMessage(request.mutable_chat(), "user", std::string(150, 'q'));
  request.set_keep(true);
  const StreamResult first = Run(request);
  v1::GenerateRequest next = Asking("");
  next.set_context(ContextOf(first));
  *next.mutable_chat() = request.chat();
  const StreamResult not_longer = RunToEnd(*server_.stub, next);
  EXPECT_EQ(not_longer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(not_longer.status).field, "prompt");
  EXPECT_NE(not_longer.status.error_message().find("does not continue context ctx-"),
            std::string::npos);
}

// Messages alone, after a document, after a conversation that ends with a question, and after one
// with a truncated answer: the result equals that of the same tokens, with the missing end of the
// answer inserted.
TEST_F(Conversation, MessagesFollowAContext) {
  v1::GenerateRequest cut_off = Asking("h2o");
  AddMessage(cut_off.mutable_chat(), "user", std::string(150, 'q'));
  cut_off.set_keep(true);
  v1::CompressContextRequest text, chat;
  text.set_text(std::string(200, 'k'));
  AddMessage(chat.mutable_chat(), "user", std::string(150, 'q'));
  chat.mutable_chat()->set_add_generation_prompt(false);
  const auto compressed = [&](v1::CompressContextRequest request) {
    request.mutable_cache()->set_cache_policy("h2o");
    request.mutable_cache()->set_max_cache_tokens(40);
    grpc::ClientContext context;
    v1::CompressContextResponse response;
    const grpc::Status status = server_.stub->CompressContext(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.context().handle();
  };
  for (const auto& [handle, missing] :
       {std::pair{compressed(text), ""}, {compressed(chat), ""}, {ContextOf(Run(cut_off)), "\n"}}) {
    v1::GenerateRequest next = Asking("");
    next.set_context(handle);
    AddMessage(next.mutable_chat(), "user", "and then?");
    next.mutable_chat()->set_continues_context(true);
    v1::GenerateRequest same = Asking("");
    same.set_context(handle);
    for (const char byte : std::string(missing) + "user:and then?\nassistant:")
      same.mutable_token_ids()->add_ids(byte);
    const StreamResult actual = Run(next), expected = Run(same);
    EXPECT_EQ(AcceptedTokens(actual), AcceptedTokens(expected));
    EXPECT_EQ(actual.token_ids, expected.token_ids);
    EXPECT_GT(actual.usage->cached_tokens(), 150u);
  }

  v1::GenerateRequest alone = Asking("h2o");
  AddMessage(alone.mutable_chat(), "user", "and then?");
  alone.mutable_chat()->set_continues_context(true);
  const StreamResult refused = RunToEnd(*server_.stub, alone);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(refused.status).field, "chat.continues_context");
}

TEST_F(Conversation, IsFoundByItsTokens) {
  v1::GenerateRequest request = Asking("h2o");
  for (int i = 0; i < 200; ++i) request.mutable_token_ids()->add_ids('a' + i % 26);
  request.set_keep(true);
  request.mutable_cache()->set_reuse(v1::REUSE_COMPRESSED);
  const StreamResult first = Run(request);
  EXPECT_EQ(first.usage->cached_tokens(), 0u);
  for (const uint32_t id : first.token_ids) request.mutable_token_ids()->add_ids(id);
  for (int i = 0; i < 10; ++i) request.mutable_token_ids()->add_ids('A' + i);
  EXPECT_EQ(Run(request).usage->cached_tokens(), 200 + kOutput - 1);
  request.mutable_cache()->set_reuse(v1::REUSE_EXACT);
  EXPECT_EQ(Run(request).usage->cached_tokens(), 0u) << "there is no prefix cache here";
}

TEST_F(Conversation, RefusalsNameTheField) {
  const std::string handle = Keep("h2o");
  struct Bad {
    const char* field;
    const char* words;
    grpc::StatusCode code;
    std::function<void(v1::GenerateRequest*)> spoil;
  };
  const Bad cases[] = {
      {"context", "ctx-0 is unknown here", grpc::StatusCode::NOT_FOUND,
       [](auto* r) { r->set_context("ctx-0"); }},
      {"context", "is unknown here", grpc::StatusCode::NOT_FOUND,
       [](auto* r) { r->mutable_cache()->set_cache_salt("another's"); }},
      {"cache", "the context's policy is h2o", grpc::StatusCode::INVALID_ARGUMENT,
       [](auto* r) { r->mutable_cache()->set_cache_policy("local"); }},
      {"cache.question_tokens", "has been compressed already", grpc::StatusCode::INVALID_ARGUMENT,
       [](auto* r) { r->mutable_cache()->set_question_tokens(2); }},
      {"prompt", "exceed max_model_len", grpc::StatusCode::INVALID_ARGUMENT,
       [](auto* r) { r->set_text(std::string(1990, 'x')); }},
  };
  for (const Bad& bad : cases) {
    v1::GenerateRequest request = WithText(Asking(""), "more");
    request.set_context(handle);
    bad.spoil(&request);
    const StreamResult result = RunToEnd(*server_.stub, request);
    EXPECT_EQ(result.status.error_code(), bad.code) << bad.words;
    EXPECT_NE(result.status.error_message().find(bad.words), std::string::npos)
        << result.status.error_message();
    if (bad.code == grpc::StatusCode::NOT_FOUND) {
      EXPECT_EQ(DetailsOf(result.status).reason, "UNKNOWN_CONTEXT");
    } else {
      EXPECT_EQ(DetailsOf(result.status).field, bad.field);
    }
  }
}

TEST_F(Conversation, IsCounted) {
  Keep("full");
  Keep("h2o");
  EXPECT_TRUE(WaitFor([&] { return server_.loop->Stats().contexts == 2; }));
}

}  // namespace
}  // namespace hydrant
