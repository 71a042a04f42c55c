// A Tokenizer made of parts: added tokens, normalizer, pre-tokenizer, merging model, decoder. Made
// from a TokenizerSpec, whatever file that came from.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// InvalidArgument or Unimplemented names the part of the spec that cannot be used.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakePipelineTokenizer(const TokenizerSpec& spec);

// The ids of those added tokens at which generation conventionally ends ("<|im_end|>", "</s>",
// ...).
std::vector<TokenId> KnownEndsOfGeneration(const std::vector<AddedToken>& tokens);

// Puts `prefix` and `suffix` around `ids` where they are not there already (no BOS is ever
// doubled).
std::vector<TokenId> SurroundOnce(const std::vector<TokenId>& prefix, std::vector<TokenId> ids,
                                  const std::vector<TokenId>& suffix);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_PIPELINE_TOKENIZER_H_
