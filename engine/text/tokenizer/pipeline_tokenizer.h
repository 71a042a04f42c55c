// A Tokenizer composed of added tokens, normalizer, pre-tokenizer, merging model and decoder. Built
// from a TokenizerSpec of any file format.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// InvalidArgument or Unimplemented names the unusable part of the spec.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakePipelineTokenizer(const TokenizerSpec& spec);

// The ids of added tokens that conventionally end generation ("<|im_end|>", "</s>", ...).
std::vector<TokenId> KnownEndsOfGeneration(const std::vector<AddedToken>& tokens);

// Adds `prefix` and `suffix` around `ids` unless already present (BOS is never doubled).
std::vector<TokenId> SurroundOnce(const std::vector<TokenId>& prefix, std::vector<TokenId> ids,
                                  const std::vector<TokenId>& suffix);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_
