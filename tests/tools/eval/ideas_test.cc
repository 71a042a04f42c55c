// Each idea's scores on arrays made by hand.
#include "tools/eval/ideas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/byte_tokenizer.h"

namespace hydrant::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

class Given final : public PromptScorer {
 public:
  const float* Score(const PromptLayer& layer) const override { return layer.statistics[0]; }
};

// Two heads with three tokens; rows have a stride of four.
class Ideas : public ::testing::Test {
 protected:
  std::vector<float> Scores(Idea idea, int layer_number = 0) {
    if (scorer_ == nullptr)
      scorer_ = ChangedScorer(idea, std::make_shared<Given>(), {false, true, false});
    std::vector<float> first = sums, second = maxima;
    PromptLayer layer;
    layer.layer = layer_number;
    layer.num_kv_heads = 2;
    layer.n = 3;
    layer.stride = 4;
    layer.statistics[0] = first.data();
    layer.statistics[1] = second.data();
    layer.scores = scores_.data();
    layer.kv.k = keys.data();
    layer.kv.v = values.data();
    layer.kv.head_stride = 6;
    layer.kv.head_dim = 2;
    const float* const made = scorer_->Score(layer);
    centred_ = second;
    return {made[0], made[1], made[2], made[4], made[5], made[6]};
  }

  std::vector<float> sums = {3, 1, 2, -9, 6, 6, 9, -9};
  std::vector<float> maxima = {0.5f, 0.25f, 0.75f, -9, 1, 1, 1, -9};
  std::vector<float> keys = {3, 0, 0, 2, 1, 0, 1, 1, 1, 1, 2, 2};
  std::vector<float> values = {1, 0, 2, 2, 0, 1, 0, 5, 1, 1, 1, 0};  // the longest: 1 and 0
  std::vector<float> centred_;

 private:
  std::shared_ptr<const PromptScorer> scorer_;
  std::vector<float> scores_ = std::vector<float>(8, 0.0f);
};

TEST_F(Ideas, MeanAttention) {
  EXPECT_THAT(Scores(Idea::kMeanAttention), ElementsAre(1, 0.5f, 2, 2, 3, 9));
}

TEST_F(Ideas, Structure) {
  EXPECT_THAT(Scores(Idea::kStructure),
              Pointwise(FloatNear(1e-6f), {3.0f, 1.0f / 3, 2.0f, 6.0f, 2.0f, 9.0f}));
}

TEST_F(Ideas, Ranks) {
  // Three values have the ranks 0, 1/3, 2/3; the later of equal values is higher.
  EXPECT_THAT(Scores(Idea::kRanks),
              Pointwise(FloatNear(1e-6f), {1.0f, 0.0f, 1.0f, 0.0f, 2.0f / 3, 4.0f / 3}));
}

TEST_F(Ideas, Centred) {
  Scores(Idea::kCentred);
  EXPECT_THAT(centred_, ElementsAre(0, 0, 0.25f, -9, 0, 0, 0, -9));
}

TEST_F(Ideas, LayersAddUp) {
  EXPECT_THAT(Scores(Idea::kLayers), ElementsAre(9, 7, 11, 9, 7, 11));
  EXPECT_THAT(Scores(Idea::kLayers, 1), ElementsAre(18, 14, 22, 18, 14, 22));
  EXPECT_THAT(Scores(Idea::kLayers, 0), ElementsAre(9, 7, 11, 9, 7, 11)) << "of the next prompt";
}

TEST_F(Ideas, KeysUnlikeTheMean) {
  // Head 0: unit keys (1, 0), (0, 1), (1, 0): the mean points to (2, 1) / sqrt(5). Head 1: all alike.
  const float like = 1 - 2 / std::sqrt(5.0f), unlike = 1 - 1 / std::sqrt(5.0f);
  EXPECT_THAT(Scores(Idea::kKeyDiff),
              Pointwise(FloatNear(1e-6f), {like, unlike, like, 0.0f, 0.0f, 0.0f}));
}

TEST_F(Ideas, NoiseIsTheSameAgain) {
  const std::vector<float> once = Scores(Idea::kNoise);
  EXPECT_EQ(Scores(Idea::kNoise), once);
  EXPECT_THAT(once, ::testing::Each(::testing::Gt(0)));
  EXPECT_NE(once[3] / once[4], 1);
}

TEST_F(Ideas, TheLongestValueIsAboveAll) {
  const std::vector<float> scores = Scores(Idea::kValues);
  EXPECT_GT(scores[1], std::max(scores[0], scores[2]));
  EXPECT_GT(scores[3], std::max(scores[4], scores[5]));
}

// As long as the context; a question and its answer are a sentence of it.
TEST(Questions, AreMadeOfTheContextsSentences) {
  const ByteTokenizer tokenizer;
  const std::string text =
      "The lamp in the hall is green. The old bridge is closed today. "
      "Nine boats lie in the harbour. The mill stands on a hill.";
  const auto context = *tokenizer.Encode(text, {.add_special_tokens = false});
  std::string read;
  for (const TokenId token : GuessedQuestions(context, tokenizer)) read += static_cast<char>(token);
  EXPECT_EQ(read.size(), text.size());
  const std::string question = "\nQuestion: which words follow \"", answer = "\"? Answer:";
  ASSERT_TRUE(read.starts_with(question)) << read;
  const size_t middle = read.find(answer);
  ASSERT_NE(middle, std::string::npos) << read;
  const std::string first = read.substr(question.size(), middle - question.size());
  const size_t end = read.find('\n', middle);
  const std::string second = read.substr(middle + answer.size(), end - middle - answer.size());
  EXPECT_GE(second.size(), first.size());
  EXPECT_THAT(text, ::testing::HasSubstr(first + second));
}

TEST(Questions, ContextWithoutSentencesIsRepeated) {
  const std::vector<TokenId> specials(5, ByteTokenizer::kBos);
  EXPECT_EQ(GuessedQuestions(specials, ByteTokenizer()), specials);
}

TEST(IdeaNames, AreFound) {
  for (const IdeaInfo& info : ListIdeas())
    EXPECT_EQ(FindIdea("idea-" + std::string(info.name)), &info);
  EXPECT_EQ(FindIdea("idea-none"), nullptr);
  EXPECT_EQ(FindIdea("ranks"), nullptr);
}

}  // namespace
}  // namespace hydrant::eval
