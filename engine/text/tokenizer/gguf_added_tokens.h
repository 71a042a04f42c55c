// The added tokens of a GGUF file: from its token types, and from rules for facts that the file
// omits. For .cc files only. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_GGUF_ADDED_TOKENS_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_GGUF_ADDED_TOKENS_H_

#include <cstdint>
#include <string_view>

#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// tokenizer.ggml.token_type, with SentencePiece's numbers.
enum GgufTokenType : int64_t {
  kGgufNormal = 1,
  kGgufUnknown = 2,
  kGgufControl = 3,
  kGgufUserDefined = 4,
  kGgufUnused = 5,
  kGgufByte = 6
};

// Appends token `id` to `spec->vocab`, and to `spec->added` if text is searched for it.
void AppendGgufToken(std::string_view text, int64_t type, float score, TokenizerSpec* spec);

// Makes user-defined tokens that the list of merges can produce available to merging. REQUIRES:
// `spec->merges` is complete.
void AdmitMergedTokens(TokenizerSpec* spec);

// Sets the tokens that strip the white space beside them. A GGUF file does not record this; in the
// published tokenizers of the Phi family (architecture "phi3") many tokens do, and their chat
// templates rely on it. `pre`: tokenizer.ggml.pre, "" for a SentencePiece vocabulary.
void SetGgufStripping(std::string_view architecture, std::string_view pre, TokenizerSpec* spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_GGUF_ADDED_TOKENS_H_
