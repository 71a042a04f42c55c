#include "engine/cache/policy_registry.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace hydrant {
namespace {

const std::vector<const Policy*>& Table() {
  // Lives as long as the process: policies have no state and no order of destruction to keep.
  // A policy a row.
  // clang-format off
  static const std::vector<const Policy*>* table = new std::vector<const Policy*>{
      NewFullPolicy().release(),
      NewLocalPolicy().release(),
      NewStreamingPolicy().release(),
      NewH2oPolicy().release(),
      NewSnapKvPolicy().release(),
      NewCo2Policy().release(),
      NewSubGenPolicy().release(),
      NewSubGenKCenterPolicy().release(),
  };
  // clang-format on
  return *table;
}

}  // namespace

const Policy* FindPolicy(std::string_view name) {
  for (const Policy* policy : Table()) {
    if (policy->Info().name == name) return policy;
  }
  return nullptr;
}

std::span<const Policy* const> Policies() { return Table(); }

absl::StatusOr<int64_t> IntegerParam(const CacheSpec& spec, const std::string& name,
                                     int64_t otherwise, int64_t least, int64_t most) {
  const auto given = spec.params.find(name);
  if (given == spec.params.end()) return otherwise;
  const std::string& text = given->second;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
    return value;
  return absl::InvalidArgumentError(fmt::format(
      "cache.params.{}: '{}' is not a whole number in [{}, {}]", name, text, least, most));
}

absl::StatusOr<double> RealParam(const CacheSpec& spec, const std::string& name, double otherwise,
                                 double least, double most) {
  const auto given = spec.params.find(name);
  if (given == spec.params.end()) return otherwise;
  const std::string& text = given->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
    return value;
  return absl::InvalidArgumentError(
      fmt::format("cache.params.{}: '{}' is not a number in [{}, {}]", name, text, least, most));
}

absl::StatusOr<std::string> ChoiceParam(const CacheSpec& spec, const std::string& name,
                                        std::span<const std::string_view> choices) {
  const auto given = spec.params.find(name);
  if (given == spec.params.end()) return std::string(choices.front());
  if (std::find(choices.begin(), choices.end(), given->second) != choices.end())
    return given->second;
  return absl::InvalidArgumentError(fmt::format("cache.params.{}: '{}' is none of {}", name,
                                                given->second, fmt::join(choices, ", ")));
}

PolicyParameter MaxCacheTokensParameter() {
  return {"max_cache_tokens", "entries a KV head holds at most", "unset", ">= 1"};
}

PolicyParameter CacheRatioParameter() {
  return {"cache_ratio", "the same as a share of the prompt's tokens", "unset", "(0, 1]"};
}

PolicyParameter MinCacheTokensParameter() {
  return {"min_cache_tokens", "floor of the share, so that short prompts are not starved",
          std::to_string(kDefaultMinCacheTokens), ">= 0"};
}

}  // namespace hydrant
