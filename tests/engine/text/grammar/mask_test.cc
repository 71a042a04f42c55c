// Compares masks with a brute force: a token is allowed exactly if the text so far plus its bytes
// is a prefix of a text of the language.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "engine/text/grammar/grammar_compiler.h"
#include "tests/engine/text/grammar/byte_language.h"
#include "tests/engine/text/grammar/small_vocabulary.h"

namespace hydrant {
namespace {

// An expression as a pattern, and its language computed independently.
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
  // in_json: without characters that must be escaped in a JSON string.
  explicit RandomExpression(uint32_t seed, bool in_json = false)
      : random_(seed), in_json_(in_json) {}

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
        if (in_json_ || Draw(0, 3) != 0) return {"\\d", Range('0', '9')};
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
        // Sometimes more repetitions than the library unrolls; only of small parts, to bound the
        // brute force.
        const bool often = Draw(0, 3) == 0;
        const Expression body = Make(often ? 0 : depth - 1);
        const int least = Draw(0, often ? 20 : 2), most = least + Draw(0, often ? 20 : 2);
        return {
            "(?:" + body.pattern + "){" + std::to_string(least) + "," + std::to_string(most) + "}",
            Repeat(body.language, least, most)};
      }
    }
  }

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

 private:
  std::mt19937 random_;
  const bool in_json_;
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

  // Compares every bit along a random text. Returns its number of tokens, or -1. A pattern with too
  // large an automaton may be refused: 0.
  int Walk(const StructuredOutput& output, const Expression& expression, RandomExpression* random) {
    const auto compiled = compiler_->Compile(output);
    const std::string refusal(compiled.status().message());
    if (refusal.find("too complex") != refusal.npos) return 0;
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

int NumExpressions() {
  const char* given = std::getenv("HYDRANT_GRAMMAR_MASKS");
  return given != nullptr ? std::atoi(given) : 200;
}

TEST_F(Masks, OfExpressions) {
  int tokens = 0;
  for (int seed = 0; seed < NumExpressions(); ++seed) {
    SCOPED_TRACE(seed);
    RandomExpression random(seed);
    const Expression expression = random.Make(3);
    const int length = Walk(RegexPattern{expression.pattern}, expression, &random);
    ASSERT_GE(length, 0);
    tokens += length;
  }
  EXPECT_GT(tokens, NumExpressions());  // the texts are not all empty
}

// A character that is unescaped in a JSON string.
Language PlainCharacter() {
  return Either(Either(Range(0x20, '!'), Range('#', '[')),
                Either(Range(']', 0x7F), LongCharacter()));
}

// The same patterns in a schema: another part of the library reads them, and any part of the string
// may match.
TEST_F(Masks, OfPatternsInSchemas) {
  const Language any_text = Star(PlainCharacter());
  int tokens = 0;
  for (int seed = 0; seed < NumExpressions(); ++seed) {
    SCOPED_TRACE(seed);
    RandomExpression random(seed, /*in_json=*/true);
    Expression expression = random.Make(3);
    const bool at_begin = random.Draw(0, 1) == 0, at_end = random.Draw(0, 1) == 0;
    expression.pattern = (at_begin ? "^" : "") + expression.pattern + (at_end ? "$" : "");
    if (!at_begin) expression.language = Join(any_text, expression.language);
    if (!at_end) expression.language = Join(expression.language, any_text);
    const nlohmann::json schema = {{"type", "string"}, {"pattern", expression.pattern}};
    expression.language = Join(Literal("\""), Join(expression.language, Literal("\"")));
    const int length = Walk(JsonSchema{schema.dump()}, expression, &random);
    ASSERT_GE(length, 0);
    tokens += length;
  }
  EXPECT_GT(tokens, 2 * NumExpressions());
}

// A string with a bounded number of unescaped characters.
TEST_F(Masks, OfLengths) {
  const Language plain = PlainCharacter();
  for (const auto& [least, most] : {std::pair(0, 3), {2, 40}, {17, 17}, {30, 200}, {0, 60}}) {
    SCOPED_TRACE(most);
    RandomExpression random(most);
    const nlohmann::json schema = {{"type", "string"}, {"minLength", least}, {"maxLength", most}};
    const Language string = Join(Literal("\""), Join(Repeat(plain, least, most), Literal("\"")));
    EXPECT_GT(Walk(JsonSchema{schema.dump()}, {schema.dump(), string}, &random), 0);
  }
}

// "bab" is no prefix of "bbab": a forbidden token implies nothing for the other one.
TEST_F(Masks, OfTokensThatContainOthers) {
  RandomExpression random(1);
  const Expression expression = {"bb[ab]*", Join(Literal("bb"), Star(Range('a', 'b')))};
  EXPECT_GE(Walk(RegexPattern{expression.pattern}, expression, &random), 0);
}

}  // namespace
}  // namespace hydrant
