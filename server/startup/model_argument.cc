#include "server/startup/model_argument.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "engine/model/gguf_split.h"
#include "engine/model/hub/model_reference.h"
#include "engine/text/unicode/utf8.h"
#include "server/wire/status_details.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

std::string WithHome(std::string path) {
  const char* const home = std::getenv("HOME");
  if (home == nullptr || !(path == "~" || path.starts_with("~/"))) return path;
  return home + path.substr(1);
}

std::string ModelOfArgument(const std::string& argument) {
  const std::string path = WithHome(argument);
  if (hub::IsHubModel(path) || Exists(path)) return path;
  const absl::StatusOr<hub::ModelReference> model = hub::ParseModelReference(path);
  if (!model.ok()) return path;
  const size_t slash = model->repo.find('/');
  const bool is_path =
      slash == std::string::npos || Exists(path.substr(0, slash)) || model->repo.ends_with(".gguf");
  return is_path ? path : std::string(hub::kHubPrefix) + path;
}

bool IsModelName(std::string_view text) {
  const auto is_control = [](unsigned char c) { return absl::ascii_iscntrl(c); };
  return !text.empty() && text.size() <= kMaxModelNameBytes && ValidateUtf8(text).ok() &&
         std::none_of(text.begin(), text.end(), is_control);
}

std::string NameOfPath(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error).lexically_normal();
  if (error) whole = path;
  if (!whole.has_filename()) whole = whole.parent_path();  // "folder/"
  std::string name = whole.filename().string();
  constexpr std::string_view kEnding = ".gguf";
  if (name.size() > kEnding.size() && name.ends_with(kEnding)) {
    name.resize(name.size() - kEnding.size() - GgufPartLength(name));
  }
  return ToValidUtf8(name);
}

}  // namespace hydrant
