#include "engine/model/hub/hub_settings.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/model/small_file.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant::hub {
namespace {

namespace fs = std::filesystem;

// The first variable that is set and not empty.
std::string FirstOf(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = environment(name); value != nullptr && *value != '\0') return value;
  }
  return "";
}

bool IsTrue(const std::string& value) {
  const std::string upper = absl::AsciiStrToUpper(value);
  return upper == "1" || upper == "ON" || upper == "YES" || upper == "TRUE";
}

std::string WithHome(const Environment& environment, const std::string& path) {
  const std::string home = FirstOf(environment, {"HOME"});
  if (home.empty() || (path != "~" && !path.starts_with("~/"))) return path;
  return home + path.substr(1);
}

// "" if no variable gives it.
std::string HuggingFaceHome(const Environment& environment) {
  if (const std::string home = FirstOf(environment, {"HF_HOME"}); !home.empty())
    return WithHome(environment, home);
  if (const std::string cache = FirstOf(environment, {"XDG_CACHE_HOME"}); !cache.empty())
    return cache + "/huggingface";
  const std::string home = FirstOf(environment, {"HOME"});
  return home.empty() ? "" : home + "/.cache/huggingface";
}

absl::StatusOr<std::string> CacheFolder(const Environment& environment) {
  std::string folder = FirstOf(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  if (folder.empty()) {
    const std::string home = HuggingFaceHome(environment);
    if (home.empty())
      return absl::InvalidArgumentError(
          "HF_HOME: it must say where models are kept, as HOME is unset");
    folder = home + "/hub";
  }
  std::error_code error;
  const fs::path absolute = fs::absolute(WithHome(environment, folder), error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("HF_HUB_CACHE: ", error.message()));
  return absolute.lexically_normal().string();
}

std::string TokenFromFile(const Environment& environment) {
  constexpr int kMaxTokenBytes = 4096;
  std::string path = FirstOf(environment, {"HF_TOKEN_PATH"});
  if (path.empty()) path = HuggingFaceHome(environment) + "/token";
  return ReadSmallFile(WithHome(environment, path), kMaxTokenBytes).value_or("");
}

absl::StatusOr<std::string> Token(const Environment& environment) {
  if (IsTrue(FirstOf(environment, {"HF_HUB_DISABLE_IMPLICIT_TOKEN"}))) return "";
  std::string token = FirstOf(environment, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (token.empty()) token = TokenFromFile(environment);
  absl::StripAsciiWhitespace(&token);
  const auto breaks_a_header = [](unsigned char c) { return c <= ' ' || c >= 0x7f; };
  if (std::any_of(token.begin(), token.end(), breaks_a_header))
    return absl::InvalidArgumentError("HF_TOKEN: it holds a character that no token has");
  return token;
}

}  // namespace

absl::StatusOr<HubSettings> ReadHubSettings(const Environment& environment) {
  HubSettings settings;
  if (std::string endpoint = FirstOf(environment, {"HF_ENDPOINT"}); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    if (!endpoint.starts_with("http://") && !endpoint.starts_with("https://")) {
      return absl::InvalidArgumentError(absl::StrCat("HF_ENDPOINT: ", Quoted(endpoint),
                                                     " does not begin with https:// or http://"));
    }
    settings.endpoint = std::move(endpoint);
  }
  HYDRANT_ASSIGN_OR_RETURN(settings.cache, CacheFolder(environment));
  HYDRANT_ASSIGN_OR_RETURN(settings.token, Token(environment));
  settings.offline = IsTrue(FirstOf(environment, {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  return settings;
}

}  // namespace hydrant::hub
