// Constraints on single tokens, over a real engine: the output satisfies them, and reported
// logprobs are consistent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/random_model_server.h"

namespace hydrant {
namespace {

class SamplingTest : public testing::Test {
 protected:
  static v1::GenerateRequest Request(uint32_t max_tokens) {
    v1::GenerateRequest request;
    request.set_text("the quick brown fox jumps over the lazy dog");
    request.mutable_sampling()->set_seed(11);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }
  std::vector<v1::GenerateResponse> Ask(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = server_.stub->Generate(&context, request);
    std::vector<v1::GenerateResponse> messages;
    for (v1::GenerateResponse message; reader->Read(&message);) messages.push_back(message);
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return messages;
  }
  // The merged deltas of a sample.
  static v1::Delta Merged(const std::vector<v1::GenerateResponse>& messages, uint32_t index = 0) {
    v1::Delta whole;
    for (const v1::GenerateResponse& message : messages) {
      if (!message.has_delta() || message.delta().index() != index) continue;
      whole.mutable_token_ids()->MergeFrom(message.delta().token_ids());
      whole.mutable_logprobs()->MergeFrom(message.delta().logprobs());
      whole.mutable_text()->append(message.delta().text());
    }
    return whole;
  }

  RandomModelServer server_{16, MakeRandomModel(RandomModelServer::Config(0), 3), nullptr, true};
};

TEST_F(SamplingTest, EachTokenHasItsLogprobs) {
  v1::GenerateRequest request = Request(30);
  request.mutable_sampling()->set_logprobs(4);
  request.mutable_sampling()->set_n(3);
  const auto messages = Ask(request);
  for (uint32_t index = 0; index < 3; ++index) {
    const v1::Delta answer = Merged(messages, index);
    ASSERT_EQ(answer.token_ids_size(), 30);
    ASSERT_EQ(answer.logprobs_size(), 30);
    for (int i = 0; i < 30; ++i) {
      const v1::TokenLogprobs& token = answer.logprobs(i);
      EXPECT_EQ(token.token_id(), answer.token_ids(i));
      EXPECT_THAT(token.top_logprobs(), testing::SizeIs(4));
      EXPECT_LE(token.logprob(), token.top_logprobs(0));
      if (token.rank() <= 4) {
        EXPECT_EQ(token.token_id(), token.top_token_ids(static_cast<int>(token.rank()) - 1));
        EXPECT_EQ(token.logprob(), token.top_logprobs(static_cast<int>(token.rank()) - 1));
      }
    }
  }
}

// The output of one request is the prompt of the next, with the same logprobs.
TEST_F(SamplingTest, APromptHasTheLogprobsThatItHadAsAnAnswer) {
  v1::GenerateRequest request = Request(40);
  request.mutable_sampling()->set_logprobs(3);
  const v1::Delta answer = Merged(Ask(request));
  grpc::ClientContext context;
  v1::TokenizeRequest tokenize;
  tokenize.set_text(request.text());
  v1::TokenizeResponse prompt;
  ASSERT_TRUE(server_.stub->Tokenize(&context, tokenize, &prompt).ok());
  v1::GenerateRequest again = Request(1);
  auto* ids = again.mutable_token_ids()->mutable_ids();
  ids->MergeFrom(prompt.token_ids());
  ids->MergeFrom(answer.token_ids());
  again.mutable_sampling()->set_prompt_logprobs(3);
  google::protobuf::RepeatedPtrField<v1::TokenLogprobs> told;
  bool has_begun = false;
  for (const v1::GenerateResponse& message : Ask(again)) {
    has_begun = has_begun || message.has_delta();
    EXPECT_FALSE(message.has_prompt_logprobs() && has_begun);
    if (message.has_prompt_logprobs()) {
      EXPECT_EQ(message.prompt_logprobs().first_position(), static_cast<uint32_t>(told.size()) + 1);
      told.MergeFrom(message.prompt_logprobs().tokens());
    }
  }
  ASSERT_EQ(told.size(), again.token_ids().ids_size() - 1);
  const int first = prompt.token_ids_size() - 1;  // belongs to the answer's first token
  for (int i = 0; i < told.size(); ++i) EXPECT_EQ(told[i].token_id(), again.token_ids().ids(i + 1));
  for (int i = 0; i < answer.logprobs_size(); ++i) {
    EXPECT_NEAR(told[first + i].logprob(), answer.logprobs(i).logprob(), 1e-4) << i;
    EXPECT_NEAR(told[first + i].top_logprobs(2), answer.logprobs(i).top_logprobs(2), 1e-4) << i;
  }
}

TEST_F(SamplingTest, OnlyAllowedTokensAndNoBadWords) {
  v1::GenerateRequest request = Request(60);
  for (const char letter : std::string("abc"))
    request.mutable_sampling()->add_allowed_token_ids(letter);
  const std::string free = Merged(Ask(request)).text();
  EXPECT_EQ(free.find_first_not_of("abc"), std::string::npos) << free;
  EXPECT_NE(free.find("ab"), std::string::npos) << free;
  request.mutable_sampling()->add_bad_words("ab");
  request.mutable_sampling()->add_bad_words("ca");
  const std::string held = Merged(Ask(request)).text();
  EXPECT_EQ(held.size(), 60u);
  EXPECT_EQ(held.find("ab"), std::string::npos) << held;
  EXPECT_EQ(held.find("ca"), std::string::npos) << held;
}

TEST_F(SamplingTest, BiasesMakeTokensLikelyOrNot) {
  v1::GenerateRequest request = Request(20);
  (*request.mutable_sampling()->mutable_logit_bias())['z'] = 100;
  EXPECT_EQ(Merged(Ask(request)).text(), std::string(20, 'z'));
  (*request.mutable_sampling()->mutable_logit_bias())['y'] = 100;
  (*request.mutable_sampling()->mutable_logit_bias())['z'] = -100;
  EXPECT_EQ(Merged(Ask(request)).text(), std::string(20, 'y'));
}

TEST_F(SamplingTest, LongPromptsAreTruncated) {
  v1::GenerateRequest request = Request(5);
  request.set_text(absl::StrCat(std::string(20'000, 'a'), "the end"));
  request.set_truncate_prompt_tokens(7);
  const auto long_one = Ask(request);
  EXPECT_EQ(long_one.back().usage().prompt_tokens(), 7u);
  request.clear_truncate_prompt_tokens();
  for (const char letter : std::string("the end")) request.mutable_token_ids()->add_ids(letter);
  EXPECT_EQ(Merged(Ask(request)).text(), Merged(long_one).text());
}

TEST_F(SamplingTest, DeltasWaitForTheirInterval) {
  v1::GenerateRequest request = Request(40);
  const v1::Delta whole = Merged(Ask(request));
  request.mutable_output()->set_stream_interval(7);
  const auto messages = Ask(request);
  std::vector<int> sizes;
  for (const v1::GenerateResponse& message : messages) {
    if (message.has_delta()) sizes.push_back(message.delta().token_ids_size());
  }
  EXPECT_EQ(Merged(messages).text(), whole.text());
  // The model is fast, and deltas that wait for a write are merged; there may be only one.
  for (size_t i = 1; i + 1 < sizes.size(); ++i) EXPECT_GE(sizes[i], 7);
  EXPECT_LE(sizes.size(), 8u);
}

}  // namespace
}  // namespace hydrant
