// Parses untrusted JSON text without exceptions.
#ifndef HYDRANT_ENGINE_MODEL_JSON_TEXT_H_
#define HYDRANT_ENGINE_MODEL_JSON_TEXT_H_

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

// One value of any kind. Keys that appear twice in one object and nesting beyond 32 are refused.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text);

// Parses text that must be one object.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text);

// As ParseJson, with the caller's depth limit; objects keep the order of the text.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, int max_depth);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_JSON_TEXT_H_
