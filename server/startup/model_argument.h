// The model and path arguments of the command line, and the model name that follows from them.
// Stateless: reads only the file system and HOME.
#ifndef HYDRANT_SERVER_STARTUP_MODEL_ARGUMENT_H_
#define HYDRANT_SERVER_STARTUP_MODEL_ARGUMENT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace hydrant {

inline constexpr size_t kMaxModelNameBytes = 256;

// Replaces the tilde of "~/..." by HOME: shells do not expand it after '=', nor in a file.
std::string WithHome(std::string path);

// A path, or "hf:ORG/NAME...". A bare ORG/NAME becomes "hf:ORG/NAME" unless a file or folder of
// that path or a folder ORG exists, or the name ends in ".gguf".
std::string ModelOfArgument(const std::string& argument);

// 1 to kMaxModelNameBytes bytes of UTF-8 without control characters, because the name is in every
// answer and log line.
bool IsModelName(std::string_view text);

// The model name from a path: the name of the folder, or of the file without ".gguf" and without
// the part number of a split file ("-00001-of-00003").
std::string NameOfPath(const std::string& path);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MODEL_ARGUMENT_H_
