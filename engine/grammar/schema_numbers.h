// Bounds and counts in a JSON schema, as the grammar library reads them. For .cc files only: it
// pulls in the JSON library. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_SCHEMA_NUMBERS_H_
#define HYDRANT_ENGINE_GRAMMAR_SCHEMA_NUMBERS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace hydrant {

// Each changes the schema in place; InvalidArgument says what is wrong with it, by keyword.

// A least and a most number of items or characters; a most that no answer reaches is left out.
absl::Status NormalizeCounts(const std::string& least, const std::string& most,
                             nlohmann::ordered_json* schema);
// "minimum" and its like, and "multipleOf": what is left of integers are closed bounds in 64 bits.
absl::Status NormalizeIntegerBounds(nlohmann::ordered_json* schema);
absl::Status CheckNumberBounds(const nlohmann::ordered_json& schema);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_SCHEMA_NUMBERS_H_
