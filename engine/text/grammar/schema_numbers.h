// Bounds and counts in a JSON schema, as the grammar library reads them. For .cc files only: it
// pulls in the JSON library. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_NUMBERS_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_NUMBERS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace hydrant {

// The Normalize functions change the schema in place. InvalidArgument names the keyword and the
// fault.

// Minimum and maximum number of items or characters. A `most` above 2^31 - 1 is removed.
absl::Status NormalizeCounts(const std::string& least, const std::string& most,
                             nlohmann::ordered_json* schema);
// "minimum", "maximum", their exclusive forms and "multipleOf" of integers. Bounds become closed
// and fit into 64 bits.
absl::Status NormalizeIntegerBounds(nlohmann::ordered_json* schema);
absl::Status CheckNumberBounds(const nlohmann::ordered_json& schema);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_NUMBERS_H_
