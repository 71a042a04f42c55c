// How much text can become how few tokens. What is too long to fit is so refused by its length in
// bytes, before anybody tokenizes it. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_TEXT_SHRINKAGE_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_TEXT_SHRINKAGE_H_

#include <cstdint>
#include <optional>

#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// The most bytes of a text that one byte of its tokens may stand for: 1 where every byte of the
// text is in some token, more where a normalizer shortens. nullopt where text may vanish without a
// token (tokens that strip space, patterns that are removed, unknown characters that are dropped or
// fused), so that no length is too much.
std::optional<int64_t> TextShrinkage(const TokenizerSpec& spec);

// Of a vocabulary in the byte alphabet: whether every byte that UTF-8 has is a token.
bool EveryByteHasAToken(const TokenizerSpec& spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_TEXT_SHRINKAGE_H_
