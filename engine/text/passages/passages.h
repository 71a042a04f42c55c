// Finds the passages of a text that share rare words with a question. A text is token ids; a
// passage is whole sentences or lines where they are short. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_PASSAGES_PASSAGES_H_
#define HYDRANT_ENGINE_TEXT_PASSAGES_PASSAGES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

// Tokens [begin, end) of a text.
struct Passage {
  int32_t begin = 0;
  int32_t end = 0;
  bool operator==(const Passage&) const = default;
};

inline constexpr int kMinPassageTokens = 16;   // shorter sentences are joined with the next
inline constexpr int kMaxPassageTokens = 128;  // longer sentences are cut
// A longer question counts by its first and its last kMaxQuestionTokens / 2 tokens: text that is
// sent along with a question stands before or behind it.
inline constexpr int kMaxQuestionTokens = 128;

// The passages of a text in order. None holds a special token; all other tokens are in one.
std::vector<Passage> SplitPassages(const Tokenizer& tokenizer, std::span<const TokenId> text);

// The passages of at most `max_tokens` tokens together that fit the question best, up to the first
// that is too long, in the order of the text; none if the two share no word. A passage is ranked by
// BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009; k1
// 1.2, b 0.75), and left out if its score is below half of the best one's. Terms are words and pairs
// of neighbouring words, compared without case, plural and the letters after the fifth. Passages
// that end with a question mark are left out. Linear in the text but for sorting the passages.
std::vector<Passage> FindPassages(const Tokenizer& tokenizer, std::span<const TokenId> text,
                                  std::span<const TokenId> question, int64_t max_tokens);

// The tokens of the passages, one after the other.
std::vector<TokenId> PassageTokens(std::span<const TokenId> text,
                                   std::span<const Passage> passages);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_PASSAGES_PASSAGES_H_
