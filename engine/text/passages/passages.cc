#include "engine/text/passages/passages.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/text/unicode/utf8.h"

namespace hydrant {
namespace {

constexpr double kTermSaturation = 1.2;        // BM25's k1
constexpr double kLengthNormalization = 0.75;  // BM25's b
constexpr double kLeastShareOfBest = 0.5;
constexpr size_t kStemCharacters = 5;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// The ends of sentences in scripts that write no space behind them.
bool EndsInWideStop(std::string_view bytes) {
  return bytes.ends_with("\u3002") || bytes.ends_with("\uff01") || bytes.ends_with("\uff1f");
}

// Whether a sentence or a line ends with this token. next: the bytes of the token behind it.
bool EndsSentence(std::string_view bytes, std::string_view next) {
  if (bytes.find('\n') != std::string_view::npos || EndsInWideStop(bytes)) return true;
  while (!bytes.empty() && (bytes.back() == '"' || bytes.back() == ')' || bytes.back() == '\''))
    bytes.remove_suffix(1);
  if (bytes.empty() || std::string_view(".?!").find(bytes.back()) == std::string_view::npos)
    return false;
  return next.empty() || IsSpace(next.front());
}

// A question holds no answer, and a model may answer an earlier question that it reads again.
bool IsQuestion(std::string_view passage) {
  while (!passage.empty() && (IsSpace(passage.back()) || passage.back() == '"'))
    passage.remove_suffix(1);
  return passage.ends_with('?') || passage.ends_with("\uff1f");
}

// A letter or a digit; every character beyond ASCII counts as one.
bool IsWordCharacter(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c >= 0x80;
}

// Chinese characters, kana and the like, which are written without spaces: each is a word.
bool IsWordOfItsOwn(char32_t c) { return c >= 0x2e80; }

// The form in which words are compared: without the s of a plural (Harman, How Effective Is
// Suffixing?, 1991), and cut behind five letters. A word with a digit stays whole.
std::u32string Stem(std::u32string word) {
  const auto is_digit = [](char32_t c) { return c >= '0' && c <= '9'; };
  if (std::any_of(word.begin(), word.end(), is_digit)) return word;
  if (word.size() > 3 && word.ends_with(U's') && !word.ends_with(U"ss")) word.pop_back();
  word.resize(std::min(word.size(), kStemCharacters));
  return word;
}

// The stems of a text's words, in order.
std::vector<std::u32string> Stems(std::string_view text) {
  std::vector<std::u32string> words;
  std::u32string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(Stem(std::exchange(word, {})));
  };
  while (!text.empty()) {
    const Utf8Front front = ReadUtf8(text);
    const char32_t c = front.kind == Utf8Front::Kind::kCharacter ? front.code_point : U' ';
    text.remove_prefix(static_cast<size_t>(front.length));
    if (!IsWordCharacter(c) || IsWordOfItsOwn(c)) end_word();
    if (!IsWordCharacter(c)) continue;
    word += c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
    if (IsWordOfItsOwn(c)) end_word();
  }
  end_word();
  return words;
}

// The stems, and all pairs of neighbours: a name of two words is rarer than each of them.
std::vector<std::u32string> Terms(std::string_view text) {
  std::vector<std::u32string> terms = Stems(text);
  const size_t stems = terms.size();
  for (size_t i = 0; i + 1 < stems; ++i) terms.push_back(terms[i] + U' ' + terms[i + 1]);
  return terms;
}

std::span<const TokenId> Within(std::span<const TokenId> text, const Passage& passage) {
  return text.subspan(passage.begin, static_cast<size_t>(passage.end - passage.begin));
}

std::string BytesOf(const Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  std::string bytes;
  for (const TokenId token : tokens) bytes += tokenizer.TokenBytes(token, true, false);
  return bytes;
}

// The terms of the first and the last part of a question, which are the whole of a short one.
std::set<std::u32string> TermsOfEnds(const Tokenizer& tokenizer,
                                     std::span<const TokenId> question) {
  constexpr size_t kHalf = kMaxQuestionTokens / 2;
  const bool is_long = question.size() > kMaxQuestionTokens;
  std::vector<std::u32string> terms =
      Terms(BytesOf(tokenizer, is_long ? question.first(kHalf) : question));
  if (is_long) {
    for (std::u32string& term : Terms(BytesOf(tokenizer, question.last(kHalf))))
      terms.push_back(std::move(term));
  }
  return {terms.begin(), terms.end()};
}

// The terms of a question in a passage.
struct Matches {
  std::map<std::u32string, int> times;  // that each term occurs
  double length = 0;                    // terms of the passage
};

Matches MatchesOf(std::string_view passage, const std::set<std::u32string>& question) {
  Matches matches;
  for (const std::u32string& term : Terms(passage)) {
    if (question.contains(term)) ++matches.times[term];
    ++matches.length;
  }
  return matches;
}

// The score of each passage.
std::vector<double> Bm25(const std::vector<Matches>& passages) {
  const auto count = static_cast<double>(passages.size());
  std::map<std::u32string, int> holders;  // passages with the term
  double mean_length = 0;
  for (const Matches& passage : passages) {
    for (const auto& [term, times] : passage.times) ++holders[term];
    mean_length += passage.length / count;
  }
  std::vector<double> scores;
  for (const Matches& passage : passages) {
    const double norm =
        1 - kLengthNormalization + kLengthNormalization * passage.length / mean_length;
    double score = 0;
    for (const auto& [term, times] : passage.times) {
      const double rarity = std::log(1 + (count - holders[term] + 0.5) / (holders[term] + 0.5));
      score += rarity * times * (kTermSaturation + 1) / (times + kTermSaturation * norm);
    }
    scores.push_back(score);
  }
  return scores;
}

}  // namespace

std::vector<Passage> SplitPassages(const Tokenizer& tokenizer, std::span<const TokenId> text) {
  std::vector<Passage> passages;
  const auto size = static_cast<int32_t>(text.size());
  Passage open;
  const auto close = [&](int32_t end, int32_t next) {
    open.end = end;
    if (open.end > open.begin) passages.push_back(open);
    open.begin = next;
  };
  std::string next = size > 0 ? tokenizer.TokenBytes(text[0], true, false) : "";
  for (int32_t i = 0; i < size; ++i) {
    const std::string bytes = std::exchange(
        next, i + 1 < size ? tokenizer.TokenBytes(text[i + 1], true, false) : std::string());
    if (tokenizer.IsSpecial(text[i])) {
      close(i, i + 1);
      continue;
    }
    const int32_t length = i + 1 - open.begin;
    if (length == kMaxPassageTokens || (length >= kMinPassageTokens && EndsSentence(bytes, next)))
      close(i + 1, i + 1);
  }
  close(size, size);
  return passages;
}

std::vector<Passage> FindPassages(const Tokenizer& tokenizer, std::span<const TokenId> text,
                                  std::span<const TokenId> question, int64_t max_tokens) {
  const std::set<std::u32string> terms = TermsOfEnds(tokenizer, question);
  if (terms.empty() || max_tokens <= 0) return {};
  std::vector<Passage> passages;
  std::vector<Matches> matches;
  for (const Passage& passage : SplitPassages(tokenizer, text)) {
    const std::string bytes = BytesOf(tokenizer, Within(text, passage));
    if (IsQuestion(bytes)) continue;
    passages.push_back(passage);
    matches.push_back(MatchesOf(bytes, terms));
  }
  const std::vector<double> scores = Bm25(matches);
  std::vector<size_t> order(passages.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  std::vector<Passage> found;
  for (const size_t i : order) {
    if (scores[i] <= 0 || scores[i] < kLeastShareOfBest * scores[order[0]]) break;
    const std::span<const TokenId> tokens = Within(text, passages[i]);
    if (std::cmp_greater(tokens.size(), max_tokens)) break;  // lesser ones would mislead
    const bool is_repeated = std::any_of(found.begin(), found.end(), [&](const Passage& other) {
      return std::ranges::equal(tokens, Within(text, other));
    });
    if (is_repeated) continue;
    max_tokens -= static_cast<int64_t>(tokens.size());
    found.push_back(passages[i]);
  }
  std::sort(found.begin(), found.end(),
            [](const Passage& a, const Passage& b) { return a.begin < b.begin; });
  return found;
}

std::vector<TokenId> PassageTokens(std::span<const TokenId> text,
                                   std::span<const Passage> passages) {
  std::vector<TokenId> tokens;
  for (const Passage& passage : passages) {
    const std::span<const TokenId> of_passage = Within(text, passage);
    tokens.insert(tokens.end(), of_passage.begin(), of_passage.end());
  }
  return tokens;
}

}  // namespace hydrant
