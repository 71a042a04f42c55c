// The small files beside a model's weights, read whole. For .cc files only: it pulls in the JSON
// library.
#ifndef HYDRANT_ENGINE_MODEL_SMALL_FILE_H_
#define HYDRANT_ENGINE_MODEL_SMALL_FILE_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant {

// Errors name the path: NotFound, or InvalidArgument of what is no file or is longer.
absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path, uintmax_t max_bytes);

// An object; an empty one where there is no such file.
absl::StatusOr<nlohmann::json> ReadConfigFile(const std::filesystem::path& path,
                                              uintmax_t max_bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_SMALL_FILE_H_
