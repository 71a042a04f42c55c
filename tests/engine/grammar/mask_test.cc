// Masks against a brute force: a token may follow exactly if the text so far and its bytes begin a
// text of the language.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "engine/grammar/grammar_compiler.h"
#include "tests/engine/grammar/byte_language.h"
#include "tests/engine/grammar/small_vocabulary.h"

namespace hydrant {
namespace {

// An expression as a pattern, and its language by other means.
struct Expression {
  std::string pattern;
  Language language;
};

// All characters of more than one byte, as UTF-8 defines them (Unicode 15, table 3-7).
Language LongCharacter() {
  const Language tail = Range(0x80, 0xBF);
  Language any = Join(Range(0xC2, 0xDF), tail);
  any = Either(any, Join(Range(0xE0, 0xE0), Join(Range(0xA0, 0xBF), tail)));
  any = Either(any, Join(Either(Range(0xE1, 0xEC), Range(0xEE, 0xEF)), Join(tail, tail)));
  any = Either(any, Join(Range(0xED, 0xED), Join(Range(0x80, 0x9F), tail)));
  any = Either(any, Join(Range(0xF0, 0xF0), Join(Range(0x90, 0xBF), Join(tail, tail))));
  any = Either(any, Join(Range(0xF1, 0xF3), Join(tail, Join(tail, tail))));
  return Either(any, Join(Range(0xF4, 0xF4), Join(Range(0x80, 0x8F), Join(tail, tail))));
}

class RandomExpression {
 public:
  explicit RandomExpression(uint32_t seed) : random_(seed) {}

  Expression Make(int depth) {
    switch (depth == 0 ? Draw(0, 3) : Draw(0, 8)) {
      case 0:
      case 1: {
        const char* const texts[] = {
            "a", "b", "c", "ab", "1", "\xC3\xA9", "\xE4\xB8\x96", "\xF0\x9F\x91\x8D"};
        const std::string text = texts[Draw(0, 7)];
        return {text, Literal(text)};
      }
      case 2: {
        const int low = Draw('a', 'c');
        const int high = Draw(low, 'c');
        const std::string range = {static_cast<char>(low), '-', static_cast<char>(high)};
        return {"[" + range + "1]", Either(Range(low, high), Range('1', '1'))};
      }
      case 3: {
        if (Draw(0, 3) != 0) return {"\\d", Range('0', '9')};
        return {"[^b-z]", Either(Either(Range(0, 'a'), Range('{', 0x7F)), LongCharacter())};
      }
      case 4:
      case 5: {
        const Expression left = Make(depth - 1), right = Make(depth - 1);
        return {left.pattern + right.pattern, Join(left.language, right.language)};
      }
      case 6: {
        const Expression left = Make(depth - 1), right = Make(depth - 1);
        return {"(" + left.pattern + "|" + right.pattern + ")",
                Either(left.language, right.language)};
      }
      case 7: {
        const Expression body = Make(depth - 1);
        const std::pair<const char*, std::pair<int, int>> forms[] = {
            {"*", {0, -1}}, {"+", {1, -1}}, {"?", {0, 1}}};
        const auto& [mark, times] = forms[Draw(0, 2)];
        return {"(" + body.pattern + ")" + mark, Repeat(body.language, times.first, times.second)};
      }
      default: {
        const Expression body = Make(depth - 1);
        const int least = Draw(0, 2), most = least + Draw(0, 2);
        return {
            "(?:" + body.pattern + "){" + std::to_string(least) + "," + std::to_string(most) + "}",
            Repeat(body.language, least, most)};
      }
    }
  }

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

 private:
  std::mt19937 random_;
};

bool MayFollow(const std::vector<uint32_t>& words, TokenId id) {
  return (words[id / 32] >> (id % 32) & 1) != 0;
}

class Masks : public ::testing::Test {
 protected:
  void SetUp() override {
    auto compiler = GrammarCompiler::Create(vocabulary_, GrammarLimits());
    ASSERT_TRUE(compiler.ok()) << compiler.status();
    compiler_ = *std::move(compiler);
  }

  // Compares every bit on the way of a random text. The number of tokens of it, or -1.
  int Walk(const Expression& expression, RandomExpression* random) {
    const auto compiled = compiler_->Compile(RegexPattern{expression.pattern});
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    if (!compiled.ok()) return -1;
    const auto constraint = (*compiled)->NewConstraint();
    std::vector<uint32_t> words(compiler_->MaskWords());
    Language rest = expression.language;
    std::string text;
    for (int length = 0; length < 12; ++length) {
      const NextTokens next = constraint->FillMask(words);
      if (next == NextTokens::kTooCostly) return length;
      std::vector<TokenId> following;
      for (TokenId id = 0; id < vocabulary_.token_bytes.size(); ++id) {
        const std::string& bytes = vocabulary_.token_bytes[id];
        const bool may = id == kSmallVocabularyEnd
                             ? rest->has_empty
                             : !bytes.empty() && Derivative(rest, bytes) != nullptr;
        EXPECT_EQ(MayFollow(words, id), may) << expression.pattern << " after '" << text
                                             << "', token " << id << " '" << bytes << "'";
        if (MayFollow(words, id) != may) return -1;
        if (may && id != kSmallVocabularyEnd) following.push_back(id);
      }
      EXPECT_EQ(constraint->IsComplete(), rest->has_empty);
      EXPECT_EQ(next, following.empty() ? NextTokens::kEnd : NextTokens::kSome);
      if (following.empty()) return length;
      const TokenId token = following[random->Draw(0, static_cast<int>(following.size()) - 1)];
      EXPECT_TRUE(constraint->Accept(token));
      text += vocabulary_.token_bytes[token];
      rest = Derivative(rest, vocabulary_.token_bytes[token]);
    }
    return 12;
  }

  const GrammarVocabulary vocabulary_ = SmallVocabulary();
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(Masks, EqualTheBruteForce) {
  const char* given = std::getenv("HYDRANT_GRAMMAR_MASKS");
  const int count = given != nullptr ? std::atoi(given) : 300;
  int tokens = 0;
  for (int seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(seed);
    RandomExpression random(seed);
    const int length = Walk(random.Make(3), &random);
    ASSERT_GE(length, 0);
    tokens += length;
  }
  EXPECT_GT(tokens, count);  // the texts are not all empty
}

// "bab" does not begin "bbab": a token that may not follow says nothing of that one.
TEST_F(Masks, OfTokensThatContainOthers) {
  RandomExpression random(1);
  EXPECT_GE(
      Walk({"bb[ab]*", Join(Literal("bb"), Star(Either(Literal("a"), Literal("b"))))}, &random), 0);
}

}  // namespace
}  // namespace hydrant
