// Reads a SentencePiece model file (tokenizer.model) into a TokenizerSpec. The file is one protobuf
// message, read here by its wire format, since its schema is not part of Debian's package. Plain
// BPE, which is what Llama's models are, is merged as a GGUF vocabulary is; any other kind
// (unigram, normalisation by a character map) is encoded by the SentencePiece library.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODEL_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODEL_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// Without prefix, suffix and ends of generation. `prefix_first_only`: as EscapeSpaces
// (space_escaping.h). InvalidArgument where the bytes are no such message; Unimplemented where its
// output could not be streamed.
absl::StatusOr<TokenizerSpec> ReadSentencePieceModel(std::string_view bytes,
                                                     bool prefix_first_only);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODEL_H_
