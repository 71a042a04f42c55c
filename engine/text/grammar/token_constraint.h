// What one sequence may say next: the state of a grammar behind the tokens that were drawn so far.
// It knows no logits; the sampler gets words of bits. One a sequence; one thread at a time.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_TOKEN_CONSTRAINT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_TOKEN_CONSTRAINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

// What follows, as FillMask() finds it.
enum class NextTokens {
  kAny,   // every token may follow; the words were not written
  kSome,  // those of the words
  // The text is complete and nothing can be added to it. The words hold the end-of-generation ids,
  // or nothing where there are none: the caller ends the sequence, and need not draw.
  kEnd,
  // No token may follow, and the text is not complete: the vocabulary cannot spell what the grammar
  // wants, or the grammar wants what does not exist. The caller ends the sequence.
  kNone,
  // The grammar is so ambiguous that what may follow takes more steps to find than are allowed. The
  // caller ends the sequence. Steps are counted, not timed: the same text ends at the same token.
  kTooCostly,
};

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Bit id % 32 of word id / 32: token `id` may follow. End-of-generation ids may follow exactly
  // where IsComplete(); other special tokens never do.
  // REQUIRES: words.size() == MaskWords() of the GrammarCompiler.
  virtual NextTokens FillMask(std::span<uint32_t> words) = 0;

  // Steps that the last FillMask() took, counted as in GrammarLimits; 0 if steps are not counted.
  virtual int64_t MaskSteps() const { return 0; }

  // The token that was drawn. False: it may not follow, and nothing has changed. After an
  // end-of-generation id nothing follows, nor after kTooCostly, which the next FillMask() says.
  virtual bool Accept(TokenId token) = 0;

  virtual bool IsComplete() const = 0;  // the text so far is one that was asked for
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_TOKEN_CONSTRAINT_H_
