// The token bytes seen by a grammar are those of the decoded text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/model/gguf.h"
#include "engine/text/grammar/grammar_compiler.h"
#include "engine/text/unicode/utf8.h"
#include "tests/test_files.h"

namespace hydrant {
namespace {

class Vocabulary : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = std::string("tests/data/tokenizer/") + GetParam();
    auto tokenizer = TokenizerFromPath(path);
    if (absl::IsUnimplemented(tokenizer.status())) GTEST_SKIP() << tokenizer.status();
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(Vocabulary, TokensJoinToTheirDecodedText) {
  const GrammarVocabulary vocabulary = VocabularyOf(*tokenizer_, 0);
  ASSERT_EQ(vocabulary.token_bytes.size(), tokenizer_->VocabSize());
  std::mt19937 random(1);
  std::uniform_int_distribution<TokenId> draw(0, tokenizer_->VocabSize() - 1);
  for (int i = 0; i < 500; ++i) {
    // Decode() drops the leading space of an opening token; a token before it prevents that.
    std::vector<TokenId> ids = {draw(random)};
    const std::string before = Decode(*tokenizer_, ids, true);
    std::string joined = tokenizer_->TokenBytes(ids[0], true, /*first=*/true);
    for (int j = 0; j < 6; ++j) {
      ids.push_back(draw(random));
      joined += vocabulary.token_bytes[ids.back()];
    }
    std::string text;
    DrainUtf8(/*at_end=*/true, &joined, &text);
    EXPECT_EQ(text, Decode(*tokenizer_, ids, /*skip_special=*/true)) << "draw " << i;
  }
}

TEST_P(Vocabulary, SpecialTokensHaveNoText) {
  const GrammarVocabulary vocabulary = VocabularyOf(*tokenizer_, tokenizer_->VocabSize() + 100);
  ASSERT_EQ(vocabulary.token_bytes.size(), tokenizer_->VocabSize() + 100);
  EXPECT_EQ(vocabulary.eog_ids, tokenizer_->eog_ids());
  for (TokenId id = 0; id < vocabulary.token_bytes.size(); ++id) {
    if (id >= tokenizer_->VocabSize() || tokenizer_->IsSpecial(id)) {
      EXPECT_EQ(vocabulary.token_bytes[id], "") << id;
    }
  }
  for (const TokenId id : vocabulary.eog_ids) EXPECT_EQ(vocabulary.token_bytes[id], "") << id;
}

INSTANTIATE_TEST_SUITE_P(TestData, Vocabulary,
                         ::testing::Values("gemma.model", "gemma.tokenizer.json",
                                           "gpt2.tokenizer.json", "llama2.tokenizer.json",
                                           "llama3.tokenizer.json", "neox.tokenizer.json", "opt",
                                           "qwen2.tokenizer.json", "smollm.tokenizer.json",
                                           "spm.model", "unigram.model"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) {
                             if (c == '.') c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace hydrant
