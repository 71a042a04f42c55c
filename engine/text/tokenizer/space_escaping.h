// How SentencePiece's models write spaces, U+2581, and where a text gets one more in front. For .cc
// files only. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SPACE_ESCAPING_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SPACE_ESCAPING_H_

#include <string_view>

#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// Adds the steps that escape spaces. `prefix`: with one more in front, of every stretch between
// special tokens (Llama 2, Phi-3), or only of the whole text, where `first_only` or where [INST] is
// a special token (Mistral from its second vocabulary on). REQUIRES: `spec->added` is complete.
void EscapeSpaces(bool prefix, bool first_only, TokenizerSpec* spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SPACE_ESCAPING_H_
