// TokenConstraint by XGrammar's matcher. For .cc files of this folder only.
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

// What the constraints of one vocabulary share.
struct MaskShape {
  explicit MaskShape(xgrammar::TokenizerInfo info) : tokenizer(std::move(info)) {}

  const xgrammar::TokenizerInfo tokenizer;
  std::vector<uint32_t> text_words;   // tokens that have text and may occur in UTF-8
  std::vector<uint32_t> eog_words;    // end-of-generation tokens
  std::vector<uint32_t> space_words;  // tokens that begin with JSON white space
  // Grammars speak of code points, and would admit surrogates and long forms, which UTF-8 has none
  // of: behind each of these bytes not all continuation bytes may follow (RFC 3629, section 4).
  struct AfterLead {
    unsigned char lead, first, last;  // of the bytes that may
    std::vector<uint32_t> ends_in{};  // tokens that end with the lead
    std::vector<uint32_t> breaks{};   // tokens that begin with another byte than those
  };
  std::array<AfterLead, 4> after_leads = {
      {{0xE0, 0xA0, 0xBF}, {0xED, 0x80, 0x9F}, {0xF0, 0x90, 0xBF}, {0xF4, 0x80, 0x8F}}};
};

// The mask of a text's first token: it is the same for all texts of a grammar.
struct FirstMask {
  NextTokens next = NextTokens::kAny;
  std::vector<uint32_t> words{};
  int64_t steps = 0;
};

// Data that all constraints of one grammar share.
struct ConstraintParts {
  xgrammar::CompiledGrammar grammar;
  std::shared_ptr<const MaskShape> shape;
  GrammarLimits limits;
  std::optional<int> max_whitespace{};  // of JSON text; unset: the text is not JSON
  std::optional<FirstMask> first{};     // unset: not made yet
};

// nullptr where the library cannot begin.
std::unique_ptr<TokenConstraint> MakeXgrammarConstraint(
    std::shared_ptr<const ConstraintParts> parts);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
