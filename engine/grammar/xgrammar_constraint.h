// TokenConstraint by XGrammar's matcher. For .cc files of this folder only.
#ifndef HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
#define HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_

#include <xgrammar/xgrammar.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/grammar/grammar_compiler.h"
#include "engine/grammar/token_constraint.h"

namespace hydrant {

// What the constraints of one vocabulary share.
struct MaskShape {
  explicit MaskShape(xgrammar::TokenizerInfo info) : tokenizer(std::move(info)) {}

  const xgrammar::TokenizerInfo tokenizer;
  std::vector<uint32_t> text_words;   // the tokens that have text, and that UTF-8 may hold
  std::vector<uint32_t> eog_words;    // the ends of generation
  std::vector<uint32_t> space_words;  // the tokens that begin with JSON's white space
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

// The mask of a text's first token: all of its texts begin alike.
struct FirstMask {
  NextTokens next = NextTokens::kAny;
  std::vector<uint32_t> words{};
  int64_t steps = 0;
};

// What the constraints of one grammar share.
struct ConstraintParts {
  xgrammar::CompiledGrammar grammar;
  std::shared_ptr<const MaskShape> shape;
  GrammarLimits limits;
  std::optional<int> max_whitespace{};  // of JSON
  std::optional<FirstMask> first{};     // where it has been made
};

// nullptr where the library cannot begin.
std::unique_ptr<TokenConstraint> MakeXgrammarConstraint(
    std::shared_ptr<const ConstraintParts> parts);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
