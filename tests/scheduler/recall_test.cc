// Recall() on hand-made contexts: the prompt that it makes, its bounds, and its refusals.
#include "scheduler/recall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/text/passages/passages.h"
#include "scheduler/context.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {
namespace {

using ::testing::HasSubstr;

// A line of 20 tokens; ids 256 and above are words of their own.
std::vector<TokenId> Line(TokenId word) {
  std::vector<TokenId> line(20, 300);
  line[7] = word;
  line.back() = '\n';
  return line;
}

class RecallTest : public ::testing::Test {
 protected:
  RecallTest() {
    for (TokenId word = 400; word < 410; ++word) {
      const std::vector<TokenId> line = Line(word);
      text_.insert(text_.end(), line.begin(), line.end());
    }
  }

  // Asks with `question` behind a context of the text under the policy, and `end` before it.
  Request Ask(const std::vector<TokenId>& question, const std::string& policy = "h2o",
              const std::vector<TokenId>& end = {}) const {
    auto context = std::make_shared<Context>();
    context->tokens = text_;
    CacheSpec spec;
    spec.policy = policy;
    if (policy != "full") spec.max_cache_tokens = 30;
    context->plan = *PlanCache(spec, {.tokens = static_cast<int64_t>(text_.size()),
                                      .num_layers = 2,
                                      .num_kv_heads = 2,
                                      .fits_two_passes = true});
    Request request;
    request.context = "text";
    request.from = std::move(context);
    request.prompt = text_;
    request.prompt.insert(request.prompt.end(), end.begin(), end.end());
    request.prompt.insert(request.prompt.end(), question.begin(), question.end());
    request.recall_tokens = 64;
    request.stopping.max_tokens = 10;
    return request;
  }
  // The tokens between the context with `end` and the question.
  std::vector<TokenId> Inserted(Request request, size_t question, size_t end = 0,
                                int64_t max_model_len = 1000) const {
    const std::vector<TokenId> before = request.prompt;
    EXPECT_TRUE(Recall(tokenizer_, static_cast<int64_t>(question), max_model_len, &request).ok());
    const auto begin = request.prompt.begin() + static_cast<int64_t>(text_.size() + end);
    std::vector<TokenId> inserted(begin, request.prompt.end() - static_cast<int64_t>(question));
    EXPECT_EQ(inserted.size(), static_cast<size_t>(request.recalled_tokens));
    request.prompt.erase(begin, begin + static_cast<int64_t>(inserted.size()));
    EXPECT_EQ(request.prompt, before);
    return inserted;
  }

  FakeTokenizer tokenizer_;
  std::vector<TokenId> text_;
};

TEST_F(RecallTest, ReadsTheLineOfAWordAgain) {
  EXPECT_EQ(Inserted(Ask({404, 501}), 2), Line(404));
  std::vector<TokenId> both = Line(402);
  for (const TokenId token : Line(407)) both.push_back(token);
  EXPECT_EQ(Inserted(Ask({407, 501, 402}), 3), both);
  EXPECT_TRUE(Inserted(Ask({501, 502}), 2).empty());
  // The end of an answer that the context lacks is no question, and stays where it is.
  EXPECT_EQ(Inserted(Ask({404}, "h2o", {402, 10}), 1, 2), Line(404));
}

// A template's tokens around a message's text are no question, and stay around it.
TEST_F(RecallTest, ReadsAgainInsideTheMessage) {
  Request request = Ask({402, 501, 404, 502, 407});
  request.asked = {.begin = 3, .end = 1};  // 404 and 502
  EXPECT_EQ(Inserted(request, 3, 2), Line(404));
  request.asked = {.begin = 1, .end = 1};  // an empty message
  EXPECT_TRUE(Inserted(request, 1, 4).empty());
}

TEST_F(RecallTest, StaysWithinItsBoundAndTheModels) {
  Request request = Ask({407, 402});
  request.recall_tokens = 39;  // of two lines that are equally good the first
  EXPECT_EQ(Inserted(request, 2), Line(402));
  request.recall_tokens = 19;
  EXPECT_TRUE(Inserted(request, 2).empty());
  request.recall_tokens = 0;
  EXPECT_TRUE(Inserted(request, 2).empty());
  request.recall_tokens = 1 << 30;
  EXPECT_EQ(Inserted(request, 2).size(), 40);
  // 200 tokens of the context, a question of 2 and an answer of 10.
  EXPECT_EQ(Inserted(request, 2, 0, 252).size(), 40);
  EXPECT_EQ(Inserted(request, 2, 0, 251).size(), 20);
  EXPECT_TRUE(Inserted(request, 2, 0, 231).empty());
  EXPECT_TRUE(Inserted(request, 2, 0, 100).empty());
  request.stopping.max_tokens.reset();  // at least one token
  EXPECT_EQ(Inserted(request, 2, 0, 243).size(), 40);
}

TEST_F(RecallTest, ReadsNothingAgainThatIsThere) {
  EXPECT_TRUE(Inserted(Ask({404}, "full"), 1).empty());
}

TEST_F(RecallTest, RepeatedLinesAreReadOnce) {
  const std::vector<TokenId> line = Line(404);
  text_.insert(text_.end(), line.begin(), line.end());
  EXPECT_EQ(Inserted(Ask({404}), 1), line);
}

TEST_F(RecallTest, RefusalsNameTheField) {
  Request request = Ask({404});
  request.context.clear();
  request.from = nullptr;
  EXPECT_THAT(Recall(tokenizer_, 1, 1000, &request).message(),
              HasSubstr("recall_tokens: needs a context"));
  request = Ask({404});
  request.whole_conversation = true;
  EXPECT_THAT(Recall(tokenizer_, 1, 1000, &request).message(),
              HasSubstr("recall_tokens: needs a chat that continues its context"));
}

}  // namespace
}  // namespace hydrant
