// Reads the JSON configurations beside a model's weights. For .cc files only: it includes the JSON
// library.
#ifndef HYDRANT_ENGINE_MODEL_CONFIG_JSON_H_
#define HYDRANT_ENGINE_MODEL_CONFIG_JSON_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace hydrant {

// The file's JSON object; an empty object if there is no such file. Errors: those of
// ReadSmallFile(), and InvalidArgument if the file is a Git LFS pointer or not a JSON object.
absl::StatusOr<nlohmann::json> ReadConfigJson(const std::filesystem::path& path,
                                              uintmax_t max_bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_CONFIG_JSON_H_
