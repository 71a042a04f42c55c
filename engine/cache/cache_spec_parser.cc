#include "engine/cache/cache_spec_parser.h"

#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "fmt/format.h"

namespace hydrant {
namespace {

template <typename Number>
bool ParseNumber(const std::string& text, std::optional<Number>* field) {
  Number number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return false;
  *field = number;
  return true;
}

}  // namespace

bool SetCacheField(const std::string& name, const std::string& value, CacheSpec* spec) {
  if (name == "max_cache_tokens") return ParseNumber(value, &spec->max_cache_tokens);
  if (name == "cache_ratio") return ParseNumber(value, &spec->cache_ratio);
  if (name == "min_cache_tokens") return ParseNumber(value, &spec->min_cache_tokens);
  if (name == "sink_tokens") return ParseNumber(value, &spec->sink_tokens);
  if (name == "protected_window_size") return ParseNumber(value, &spec->protected_window_size);
  if (name == "min_retained_mass") return ParseNumber(value, &spec->min_retained_mass);
  spec->params[name] = value;
  return true;
}

absl::StatusOr<CacheSpec> ParseCacheSpec(std::string_view text) {
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ':');
  const auto wrong = [&](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("'{}': {}", text, why));
  };
  if (words[0].empty()) return wrong("it begins with the name of a policy");
  CacheSpec spec;
  spec.policy = words[0];
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    if (setting.first.empty() || setting.second.empty())
      return wrong("settings are written name=value");
    if (!SetCacheField(setting.first, setting.second, &spec))
      return wrong(fmt::format("{}: '{}' is no value for it", setting.first, setting.second));
  }
  return spec;
}

}  // namespace hydrant
