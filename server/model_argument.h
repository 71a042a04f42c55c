// What people write for a model and for paths, and the name that a model has by that. Stateless but
// for the file system and HOME.
#ifndef HYDRANT_SERVER_MODEL_ARGUMENT_H_
#define HYDRANT_SERVER_MODEL_ARGUMENT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace hydrant {

inline constexpr size_t kMostModelNameBytes = 256;

// "~/..." with HOME for the tilde: a shell leaves it where it stands behind a '=', and in files.
std::string WithHome(std::string path);

// A path, or "hf:ORG/NAME...", which a bare ORG/NAME becomes where nothing of that path, and no
// folder ORG, is there.
std::string ModelOfArgument(const std::string& argument);

// 1 to kMostModelNameBytes bytes of UTF-8 without control characters: a name goes into every answer
// and log line.
bool IsModelName(std::string_view text);

// Of a file without ".gguf" and the number of a split file, or of a folder.
std::string NameOfPath(const std::string& path);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_MODEL_ARGUMENT_H_
