#include "engine/model/config_json.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/lfs_pointer.h"
#include "engine/model/small_file.h"
#include "kernels/status_macros.h"

namespace hydrant {

absl::StatusOr<nlohmann::json> ReadConfigJson(const std::filesystem::path& path,
                                              uintmax_t max_bytes) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, max_bytes);
  if (absl::IsNotFound(text.status())) return nlohmann::json::object();
  HYDRANT_RETURN_IF_ERROR(text.status());
  if (IsLfsPointer(*text)) return LfsPointerError(path.string());
  nlohmann::json config = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a JSON object"));
  return config;
}

}  // namespace hydrant
