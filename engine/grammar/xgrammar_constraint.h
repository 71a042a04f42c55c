// TokenConstraint by XGrammar's matcher. For .cc files of this folder only.
#ifndef HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
#define HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_

#include <xgrammar/xgrammar.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/grammar/grammar_compiler.h"
#include "engine/grammar/token_constraint.h"

namespace hydrant {

// What the constraints of one vocabulary share.
struct MaskShape {
  std::vector<uint32_t> text_words;  // the tokens that have text, and that UTF-8 may hold
  std::vector<uint32_t> eog_words;   // the ends of generation
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

// nullptr where the library cannot begin.
std::unique_ptr<TokenConstraint> MakeXgrammarConstraint(const xgrammar::CompiledGrammar& grammar,
                                                        std::shared_ptr<const MaskShape> shape,
                                                        const GrammarLimits& limits);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
