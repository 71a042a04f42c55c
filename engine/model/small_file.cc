#include "engine/model/small_file.h"

#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {

absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path, uintmax_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    return absl::NotFoundError(absl::StrCat(path.string(), ": no such file"));
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": is neither a regular file nor a folder"));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": larger than ", max_bytes, " bytes"));
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  if (!stream) return absl::UnavailableError(absl::StrCat(path.string(), ": cannot be read"));
  return std::move(bytes).str();
}

absl::StatusOr<nlohmann::json> ReadConfigFile(const std::filesystem::path& path,
                                              uintmax_t max_bytes) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, max_bytes);
  if (absl::IsNotFound(text.status())) return nlohmann::json::object();
  HYDRANT_RETURN_IF_ERROR(text.status());
  nlohmann::json config = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a JSON object"));
  return config;
}

}  // namespace hydrant
