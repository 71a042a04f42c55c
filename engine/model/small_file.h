// Reads small files whole: configurations, templates, certificates, tokens. Stateless; any thread
// may call.
#ifndef HYDRANT_ENGINE_MODEL_SMALL_FILE_H_
#define HYDRANT_ENGINE_MODEL_SMALL_FILE_H_

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant {

// The file's bytes. Never waits for a writer, and never returns more than `max_bytes`, whatever
// file the path names. Errors are "PATH: why": NotFound; InvalidArgument: not a regular file, or
// too long; Unavailable: the system refuses to read it.
absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path, uintmax_t max_bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_SMALL_FILE_H_
