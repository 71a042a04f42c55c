// Normalization and pre-tokenization for each name in a GGUF file's "tokenizer.ggml.pre".
// Converters identify a tokenizer by its ids for a test text and write only the name. The rules are
// those of the published tokenizer.json. For .cc files only.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_GGUF_PRETOKENIZERS_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_GGUF_PRETOKENIZERS_H_

#include <string>

#include "absl/status/status.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

// Sets the normalizers, the pre-tokenizers and `ignore_merges`. `add_bos` gets the default for
// files that do not say whether BOS is added. Unimplemented lists the known names. Thread safe.
absl::Status ApplyGgufPreTokenizer(const std::string& name, TokenizerSpec* spec, bool* add_bos);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_GGUF_PRETOKENIZERS_H_
