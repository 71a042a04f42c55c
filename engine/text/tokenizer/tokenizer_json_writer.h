// Writes a TokenizerSpec as Hugging Face's tokenizer.json, the inverse of ParseTokenizerJson(), for
// clients that tokenize themselves. Pure.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_WRITER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_WRITER_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// For SentencePiece's BPE, merges by rank are derived from the scores. Unimplemented names the
// feature that the format cannot express.
absl::StatusOr<std::string> WriteTokenizerJson(const TokenizerSpec& spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_WRITER_H_
