// TokenConstraint on XGrammar's matcher. For .cc files of this folder only.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_XGRAMMAR_CONSTRAINT_H_

#include <xgrammar/xgrammar.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/text/grammar/grammar_compiler.h"
#include "engine/text/grammar/token_constraint.h"

namespace hydrant {

// Data shared by the constraints of one vocabulary.
struct MaskShape {
  explicit MaskShape(xgrammar::TokenizerInfo info) : tokenizer(std::move(info)) {}

  const xgrammar::TokenizerInfo tokenizer;
  std::vector<uint32_t> text_words;   // tokens with text that may occur in UTF-8
  std::vector<uint32_t> eog_words;    // end-of-generation tokens
  std::vector<uint32_t> space_words;  // tokens that begin with JSON white space
  // Grammars work on code points and would admit surrogates and overlong forms, which are invalid
  // UTF-8: after each of these lead bytes only some continuation bytes are valid (RFC 3629, section
  // 4).
  struct AfterLead {
    unsigned char lead, first, last;  // range of valid continuation bytes
    std::vector<uint32_t> ends_in{};  // tokens that end with the lead
    std::vector<uint32_t> breaks{};   // tokens that begin with an invalid continuation
  };
  std::array<AfterLead, 4> after_leads = {
      {{0xE0, 0xA0, 0xBF}, {0xED, 0x80, 0x9F}, {0xF0, 0x90, 0xBF}, {0xF4, 0x80, 0x8F}}};
};

// The mask of a text's first token: the same for all texts of a grammar.
struct FirstMask {
  NextTokens next = NextTokens::kAny;
  std::vector<uint32_t> words{};
  int64_t steps = 0;
};

// Data shared by all constraints of one grammar.
struct ConstraintParts {
  xgrammar::CompiledGrammar grammar;
  std::shared_ptr<const MaskShape> shape;
  GrammarLimits limits;
  std::optional<int> max_whitespace{};  // of JSON text; unset: the text is not JSON
  std::optional<FirstMask> first{};     // unset: not computed yet
};

// nullptr if the library cannot start.
std::unique_ptr<TokenConstraint> MakeXgrammarConstraint(
    std::shared_ptr<const ConstraintParts> parts);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
