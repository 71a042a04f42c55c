#include "engine/model/model_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/model/dummy_source.h"
#include "engine/model/gguf.h"
#include "engine/model/gguf_model.h"
#include "engine/model/gguf_split.h"
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

// The first file of each GGUF model in the folder, sorted.
std::vector<std::string> GgufFilesIn(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool is_first = absl::StrContains(name, "-00001-of-");
    if (!name.ends_with(".gguf") || (!is_first && GgufPartLength(name) > 0)) continue;
    files.push_back(at->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::unique_ptr<ModelSource>> OpenFolder(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::path(path) / "config.json", error)) return OpenHfFolder(path);
  const std::vector<std::string> files = GgufFilesIn(path);
  if (files.size() == 1) return OpenGguf(files.front());
  if (files.empty()) return OpenHfFolder(path);  // reports the missing file
  return absl::InvalidArgumentError(absl::StrCat(Quoted(path), " holds ", files.size(),
                                                 " GGUF files; name one of them, such as ",
                                                 Quoted(files.front())));
}

}  // namespace

std::string ModelFileOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error) || fs::exists(fs::path(path) / "config.json", error))
    return path;
  const std::vector<std::string> files = GgufFilesIn(path);
  return files.size() == 1 ? files.front() : path;
}

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
  return is_folder ? OpenFolder(path) : OpenGguf(path);
}

}  // namespace hydrant
