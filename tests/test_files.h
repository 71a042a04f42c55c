// Locations of models and texts that are not in the repository, and a file reader. Tests run in the
// repository's root.
#ifndef HYDRANT_TESTS_TEST_FILES_H_
#define HYDRANT_TESTS_TEST_FILES_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace hydrant {

// A file of scripts/fetch-model or scripts/test: .cache/models/<name>.
inline std::optional<std::string> CachedModel(const std::string& name) {
  const std::string path = ".cache/models/" + name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

inline constexpr char kSmolLm2[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

// A file of the optional data folder: $HYDRANT_DATA_DIR, else ../shared/data.
inline std::optional<std::string> DataFile(const std::string& name) {
  const char* folder = std::getenv("HYDRANT_DATA_DIR");
  const std::string path = std::string(folder != nullptr ? folder : "../shared/data") + "/" + name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

// The whole file; empty if it cannot be read.
inline std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_TEST_FILES_H_
