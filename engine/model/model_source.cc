#include "engine/model/model_source.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/dummy_source.h"
#include "engine/model/gguf.h"
#include "engine/model/gguf_model.h"
#include "engine/model/hf_config.h"
#include "engine/model/hf_folder.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<ModelSource>> OpenDummy(const fs::path& path, bool is_folder,
                                                       uint64_t seed) {
  const fs::path config_path = is_folder ? path / "config.json" : path;
  HYDRANT_ASSIGN_OR_RETURN(HfConfig config, ReadHfConfig(config_path.string()));
  return MakeDummySource(std::move(config), config_path.parent_path().string(), seed);
}

absl::StatusOr<std::unique_ptr<ModelSource>> OpenGguf(const std::string& path) {
  HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  absl::StatusOr<std::unique_ptr<ModelSource>> source = MakeGgufSource(std::move(file));
  if (!source.ok()) return WithContext(source.status(), Quoted(path));
  return source;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> OpenModel(const std::string& path, LoadFormat format,
                                                       uint64_t dummy_seed) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError(
        absl::StrCat("model ", Quoted(path), " does not exist or cannot be reached"));
  }
  const bool is_folder = fs::is_directory(status);
  if (format == LoadFormat::kDummy) return OpenDummy(path, is_folder, dummy_seed);
  return is_folder ? OpenHfFolder(path) : OpenGguf(path);
}

}  // namespace hydrant
