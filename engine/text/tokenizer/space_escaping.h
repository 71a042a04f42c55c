// SentencePiece's escaping of spaces as U+2581, and its space in front of a text. For .cc files
// only. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SPACE_ESCAPING_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SPACE_ESCAPING_H_

#include <string_view>

#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// Adds the steps that escape spaces. `prefix`: adds a space in front of every section between
// special tokens (Llama 2, Phi-3), or only of the whole text if `first_only` or if [INST] is a
// special token (Mistral from its second vocabulary on). REQUIRES: `spec->added` is complete.
void EscapeSpaces(bool prefix, bool first_only, TokenizerSpec* spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SPACE_ESCAPING_H_
