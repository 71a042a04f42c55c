// Passages by hand-made texts, and their choice against BM25 written down word by word.
#include "engine/text/passages/passages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A token for each word of a text with the space before it; "|" is the special token.
class WordTokens {
 public:
  std::vector<TokenId> operator()(const std::string& text) {
    std::vector<TokenId> tokens;
    for (const absl::string_view piece : absl::StrSplit(text, ' ')) {
      const std::string word(piece);
      if (word == "|") {
        tokens.push_back(FakeTokenizer::kEog);
        continue;
      }
      const auto [it, is_new] = ids_.try_emplace(word, 256 + static_cast<TokenId>(ids_.size()));
      if (is_new) tokenizer.texts[it->second] = absl::StrCat(" ", word);
      tokens.push_back(it->second);
    }
    return tokens;
  }

  FakeTokenizer tokenizer;

 private:
  std::map<std::string, TokenId> ids_;
};

// `count` words w0 w1 .. that no question holds.
std::string Filler(int count, const std::string& last = "") {
  std::string text;
  for (int i = 0; i < count; ++i) text += absl::StrCat(i == 0 ? "" : " ", "fil", i % 7);
  return text + last;
}

TEST(SplitPassages, EndsAtSentencesAndLines) {
  WordTokens tokens;
  // Sentences of 20, 18 and 5 words; the last ends the text.
  const auto text = tokens(Filler(19) + " end. " + Filler(17) + " (end?\") " + Filler(5));
  EXPECT_THAT(SplitPassages(tokens.tokenizer, text),
              ElementsAre(Passage{0, 20}, Passage{20, 38}, Passage{38, 43}));
  const auto lines = tokens(Filler(16, "\n") + " " + Filler(16, "\u3002") + " " + Filler(3));
  EXPECT_THAT(SplitPassages(tokens.tokenizer, lines),
              ElementsAre(Passage{0, 16}, Passage{16, 32}, Passage{32, 35}));
}

TEST(SplitPassages, JoinsShortSentencesAndCutsLongOnes) {
  WordTokens tokens;
  const auto text = tokens(Filler(4, ".") + " " + Filler(10, ".") + " " + Filler(6, ".") + " " +
                           Filler(kMaxPassageTokens + 9));
  EXPECT_THAT(SplitPassages(tokens.tokenizer, text),
              ElementsAre(Passage{0, 20}, Passage{20, 20 + kMaxPassageTokens},
                          Passage{20 + kMaxPassageTokens, 29 + kMaxPassageTokens}));
}

TEST(SplitPassages, HoldNoSpecialTokenAndNoNumberIsCut) {
  WordTokens tokens;
  EXPECT_THAT(SplitPassages(tokens.tokenizer, tokens("| a b | | c |")),
              ElementsAre(Passage{1, 3}, Passage{5, 6}));
  EXPECT_THAT(SplitPassages(tokens.tokenizer, {}), IsEmpty());
  // "3." then "14" without a space between them.
  auto text = tokens(Filler(19) + " 3. x " + Filler(4));
  tokens.tokenizer.texts[text[20]] = "14";
  EXPECT_THAT(SplitPassages(tokens.tokenizer, text), ElementsAre(Passage{0, 25}));
}

TEST(FindPassages, TakesTheOneWithTheRareWordInAnyForm) {
  WordTokens tokens;
  const auto text = tokens(Filler(19, ".") + " The front doors of Halvor's inn are painted teal. " +
                           Filler(10, ".") + " " + Filler(30, "."));
  const auto passages = SplitPassages(tokens.tokenizer, text);
  ASSERT_EQ(passages.size(), 3);
  for (const char* question :
       {"Which colour has the door of that inn?", "HALVOR", "who painted it", "x| |door|"}) {
    EXPECT_THAT(FindPassages(tokens.tokenizer, text, tokens(question), 64),
                ElementsAre(passages[1]))
        << question;
  }
  for (const char* question : {"halv", "", "|", "?! ..."}) {
    EXPECT_THAT(FindPassages(tokens.tokenizer, text, tokens(question), 64), IsEmpty()) << question;
  }
}

// A conversation holds earlier questions in nearly the same words. Read again, they would be answered.
TEST(FindPassages, QuestionsAreNotReadAgain) {
  WordTokens tokens;
  const std::string between = " " + Filler(16) + ". ";
  const auto text =
      tokens(Filler(15) + " key lock? " + Filler(15) + " key lock?\" " + Filler(15) +
             " key lock\uff1f" + between + "key lock? " + Filler(15) + ". " + Filler(20, "."));
  const auto passages = SplitPassages(tokens.tokenizer, text);
  ASSERT_EQ(passages.size(), 6);
  EXPECT_THAT(FindPassages(tokens.tokenizer, text, tokens("key lock"), 1000),
              ElementsAre(passages[4]))
      << "a question with its answer";
  const auto only = tokens(Filler(15) + " key lock?");
  EXPECT_THAT(FindPassages(tokens.tokenizer, only, tokens("key lock"), 1000), IsEmpty());
}

// A text between the ends of a long question does not count.
TEST(FindPassages, LongQuestionsAreReadAtTheirEnds) {
  WordTokens tokens;
  const auto text =
      tokens(Filler(15) + " door. " + Filler(15) + " boat. " + Filler(15) + " lamp. " + Filler(15));
  const auto passages = SplitPassages(tokens.tokenizer, text);
  const auto x = [](int count) { return absl::StrJoin(std::vector<std::string>(count, "x"), " "); };
  const int half = kMaxQuestionTokens / 2;
  const auto find = [&](const std::string& question) {
    return FindPassages(tokens.tokenizer, text, tokens(question), 100);
  };
  EXPECT_THAT(find("door " + x(half - 1) + " boat " + x(half - 1) + " lamp"),
              ElementsAre(passages[0], passages[2]));
  EXPECT_THAT(find(x(half - 1) + " boat " + x(half + 1)), ElementsAre(passages[1]));
  EXPECT_THAT(find(x(half) + " boat " + x(half)), IsEmpty());
  EXPECT_THAT(find(x(half) + " boat " + x(half - 1)), ElementsAre(passages[1])) << "not long";
}

TEST(FindPassages, ComparesNumbersWholeAndCharactersOfChineseAlone) {
  WordTokens tokens;
  const auto text = tokens(Filler(15) + " 1234567. " + Filler(15) + " 1234568. " + Filler(15) +
                           " \u6e2f\u53e3\u3002 " + Filler(15) + ".");
  const auto passages = SplitPassages(tokens.tokenizer, text);
  ASSERT_EQ(passages.size(), 4);
  EXPECT_THAT(FindPassages(tokens.tokenizer, text, tokens("1234568"), 64),
              ElementsAre(passages[1]));
  EXPECT_THAT(FindPassages(tokens.tokenizer, text, tokens("\u5728\u6e2f"), 64),
              ElementsAre(passages[2]));
}

TEST(FindPassages, StaysWithinTheBound) {
  WordTokens tokens;
  // Passages of 20, 30 and 20 tokens; the second is the best.
  const auto text = tokens("key " + Filler(19, ".") + " key lock " + Filler(28, ".") + " key x " +
                           Filler(18, "."));
  const auto passages = SplitPassages(tokens.tokenizer, text);
  const auto question = tokens("key lock");
  const auto found = [&](int most) { return FindPassages(tokens.tokenizer, text, question, most); };
  EXPECT_THAT(found(1000), ElementsAre(passages[1]));  // the others are below half of its score
  EXPECT_THAT(found(30), ElementsAre(passages[1]));
  EXPECT_THAT(found(29), IsEmpty());
  EXPECT_THAT(FindPassages(tokens.tokenizer, text, tokens("key lock fil3"), 29), IsEmpty())
      << "the second best alone would mislead";
  EXPECT_THAT(found(0), IsEmpty());
  EXPECT_THAT(FindPassages(tokens.tokenizer, text, tokens("key"), 49),
              ElementsAre(passages[0], passages[2]));
}

TEST(FindPassages, RepeatedPassagesAreFoundOnce) {
  WordTokens tokens;
  const std::string line = "key " + Filler(19, ".");
  const auto text = tokens(line + " " + Filler(20, ".") + " " + line + " key x " + Filler(18, "."));
  EXPECT_THAT(FindPassages(tokens.tokenizer, text, tokens("key"), 1000),
              ElementsAre(Passage{0, 20}, Passage{60, 80}));
}

// The published formula, one word and one passage after the other. All words are shorter than a
// stem, and sentences have 16 to 40 words.
TEST(FindPassages, RanksByBm25) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 200; ++round) {
    WordTokens tokens;
    std::vector<std::vector<std::string>> sentences(2 + rng() % 8);
    std::string text;
    for (auto& sentence : sentences) {
      sentence.resize(16 + rng() % 25);
      for (std::string& word : sentence) {
        word = absl::StrCat("w", rng() % (1 + rng() % 60));
        absl::StrAppend(&text, text.empty() ? "" : " ", word);
      }
      text += ".";
    }
    std::vector<std::string> words;
    for (int i = 0; i < 3; ++i) words.push_back(absl::StrCat("w", rng() % 30));
    const std::string question = absl::StrJoin({words[0], words[1], words[2], words[0]}, " ");
    // The terms of a sentence: its words, and the pairs of neighbours.
    std::vector<std::string> terms_asked = {words[0], words[1], words[2], words[0]};
    const auto terms_of = [](std::vector<std::string> words_of) {
      const size_t count = words_of.size();
      for (size_t i = 1; i < count; ++i) words_of.push_back(words_of[i - 1] + " " + words_of[i]);
      return words_of;
    };
    std::vector<std::vector<std::string>> terms;
    double mean = 0;
    for (const auto& sentence : sentences) {
      terms.push_back(terms_of(sentence));
      mean += static_cast<double>(terms.back().size()) / static_cast<double>(sentences.size());
    }
    terms_asked = terms_of(terms_asked);
    std::vector<double> scores;
    for (const auto& sentence : terms) {
      double score = 0;
      for (const std::string& term :
           std::set<std::string>(terms_asked.begin(), terms_asked.end())) {
        const auto in = [&](const auto& s) { return std::count(s.begin(), s.end(), term); };
        const auto holders =
            std::count_if(terms.begin(), terms.end(), [&](const auto& s) { return in(s) > 0; });
        const auto times = static_cast<double>(in(sentence));
        const auto n = static_cast<double>(terms.size());
        const double length = static_cast<double>(sentence.size()) / mean;
        score += std::log(1 + (n - holders + 0.5) / (holders + 0.5)) * times * 2.2 /
                 (times + 1.2 * (0.25 + 0.75 * length));
      }
      scores.push_back(score);
    }
    const auto text_tokens = tokens(text);
    const auto passages = SplitPassages(tokens.tokenizer, text_tokens);
    ASSERT_EQ(passages.size(), sentences.size());
    const auto found = FindPassages(tokens.tokenizer, text_tokens, tokens(question), 1000);
    const double best = *std::max_element(scores.begin(), scores.end());
    for (size_t i = 0; i < passages.size(); ++i) {
      if (std::abs(scores[i] - best / 2) < 1e-9) continue;  // rounding decides
      const bool is_found = std::find(found.begin(), found.end(), passages[i]) != found.end();
      EXPECT_EQ(is_found, scores[i] > 0 && scores[i] > best / 2) << "sentence " << i;
    }
  }
}

}  // namespace
}  // namespace hydrant
