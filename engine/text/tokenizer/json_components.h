// Reads the components of tokenizer.json, each into its part of the spec; null means that there is
// none. For .cc files only. Unimplemented names an unsupported component. Thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_JSON_COMPONENTS_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_JSON_COMPONENTS_H_

#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

absl::Status ReadNormalizer(const nlohmann::json& component, TokenizerSpec* spec);
absl::Status ReadPreTokenizer(const nlohmann::json& component, TokenizerSpec* spec);
absl::Status ReadPostProcessor(const nlohmann::json& component, TokenizerSpec* spec);
absl::Status ReadDecoder(const nlohmann::json& component, TokenizerSpec* spec);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_JSON_COMPONENTS_H_
