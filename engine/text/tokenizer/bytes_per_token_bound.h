// An upper bound of text bytes per token, to reject over-long prompts by their length before
// tokenizing. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_BYTES_PER_TOKEN_BOUND_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_BYTES_PER_TOKEN_BOUND_H_

#include <cstdint>
#include <optional>

#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// The maximum number of text bytes per byte of token text: 1 if every byte of the text is in some
// token, more if a normalizer shortens. nullopt if text may vanish without a token (tokens that
// strip space, patterns that are removed, unknown characters that are dropped or fused), so that
// there is no bound.
std::optional<int64_t> BytesPerTokenBound(const TokenizerSpec& spec);

// For a vocabulary in the byte alphabet: whether every byte that occurs in UTF-8 is a token.
bool AllBytesHaveTokens(const TokenizerSpec& spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_BYTES_PER_TOKEN_BOUND_H_
