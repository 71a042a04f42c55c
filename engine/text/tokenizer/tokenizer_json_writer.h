// A TokenizerSpec as Hugging Face's tokenizer.json, the inverse of ParseTokenizerJson(): for
// clients that tokenize by themselves what the server has from another file. Pure.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_WRITER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_WRITER_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// SentencePiece's BPE merges by scores; its merges by rank are made from them. Unimplemented names
// what the format has no word for.
absl::StatusOr<std::string> WriteTokenizerJson(const TokenizerSpec& spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_WRITER_H_
