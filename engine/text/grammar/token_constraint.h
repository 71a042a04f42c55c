// The grammar state of one sequence, which yields a mask of allowed next tokens. It does not see
// logits; the sampler gets a bit mask. One per sequence; one thread at a time.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_TOKEN_CONSTRAINT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_TOKEN_CONSTRAINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

// Result of FillMask().
enum class NextTokens {
  kAny,   // every token is allowed; the words were not written
  kSome,  // the tokens in the mask
  // The text is complete and cannot be extended. The mask holds the end-of-generation ids, or is
  // empty if there are none: the caller ends the sequence, and need not sample.
  kEnd,
  // No token is allowed, and the text is not complete: the vocabulary cannot spell the grammar's
  // continuation, or the grammar is unsatisfiable. The caller ends the sequence.
  kNone,
  // The grammar is so ambiguous that computing the mask exceeds the step limit. The caller ends the
  // sequence. Steps are counted, not timed: the same text always ends at the same token.
  kTooCostly,
};

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Bit id % 32 of word id / 32: token `id` is allowed. End-of-generation ids are allowed exactly
  // if IsComplete(); other special tokens never are. REQUIRES: words.size() == MaskWords() of the
  // GrammarCompiler.
  virtual NextTokens FillMask(std::span<uint32_t> words) = 0;

  // Steps of the last FillMask(), counted as in GrammarLimits; 0 if steps are not counted.
  virtual int64_t MaskSteps() const { return 0; }

  // Advances by the sampled token. False: the token is not allowed; the state is unchanged. Always
  // false after an end-of-generation id and after kTooCostly, which the next FillMask() returns.
  virtual bool Accept(TokenId token) = 0;

  virtual bool IsComplete() const = 0;  // the text so far satisfies the grammar
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_TOKEN_CONSTRAINT_H_
