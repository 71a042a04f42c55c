// Reads a SentencePiece model file (tokenizer.model) into a TokenizerSpec. The file is one protobuf
// message, parsed here by its wire format, as its schema is not in Debian's package. Plain BPE, as
// in Llama's models, is merged like a GGUF vocabulary; any other kind (unigram, normalisation by a
// character map) is encoded by the SentencePiece library.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODEL_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODEL_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// Without prefix, suffix and ends of generation. `prefix_first_only`: as EscapeSpaces
// (space_escaping.h). InvalidArgument if the bytes are not such a message; Unimplemented if its
// output could not be streamed.
absl::StatusOr<TokenizerSpec> ReadSentencePieceModel(std::string_view bytes,
                                                     bool prefix_first_only);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODEL_H_
