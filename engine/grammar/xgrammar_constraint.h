// TokenConstraint by XGrammar's matcher. For .cc files of this folder only.
#ifndef HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
#define HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_

#include <xgrammar/xgrammar.h>

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
  // Grammars speak of code points, and would admit surrogates, which UTF-8 has none of: these
  // tokens would complete one behind the byte 0xED, with which those of ends_in_ed end.
  std::vector<uint32_t> completes_surrogate;
  std::vector<uint32_t> ends_in_ed;
};

// nullptr where the library cannot begin.
std::unique_ptr<TokenConstraint> MakeXgrammarConstraint(const xgrammar::CompiledGrammar& grammar,
                                                        std::shared_ptr<const MaskShape> shape,
                                                        const GrammarLimits& limits);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_XGRAMMAR_CONSTRAINT_H_
