// Files that are read whole: configurations, templates, certificates, tokens. Stateless; any thread
// may call.
#ifndef HYDRANT_ENGINE_MODEL_SMALL_FILE_H_
#define HYDRANT_ENGINE_MODEL_SMALL_FILE_H_

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant {

// Never waits for a writer, and never takes more than `max_bytes`, whatever the path leads to.
// Errors are "PATH: why": NotFound, InvalidArgument of what is no regular file or is longer,
// Unavailable where the system refuses to read.
absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path, uintmax_t max_bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_SMALL_FILE_H_
