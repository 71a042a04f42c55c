// Reads Hugging Face's tokenizer.json, and the older vocab.json + merges.txt, into a TokenizerSpec.
// Pure functions, thread safe; input is untrusted.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// InvalidArgument names the invalid field, Unimplemented the unsupported component or option.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json);

// The byte-level BPE of GPT-2 and OPT. `merges`: one "left right" a line, after an optional
// "#version" line.
absl::StatusOr<TokenizerSpec> ParseVocabAndMerges(std::string_view vocab_json,
                                                  std::string_view merges);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_TOKENIZER_JSON_H_
