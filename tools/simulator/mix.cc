#include "tools/simulator/mix.h"

#include <charconv>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_split.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/cache_spec_parser.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant::sim {
namespace {

using Setter = std::function<bool(const std::string& text, Request* request)>;

template <typename Number>
bool ParseNumber(const std::string& text, Number* number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && rest == end;
}

template <typename Number, typename Member>
Setter NumberSetter(Member member) {
  return [member](const std::string& text, Request* request) {
    Number number = 0;
    if (!ParseNumber(text, &number)) return false;
    std::invoke(member, request) = number;
    return true;
  };
}

// A setting with a few allowed words.
template <typename Value>
Setter WordSetter(Value Request::*member, std::map<std::string, Value> words) {
  return [member, words = std::move(words)](const std::string& text, Request* request) {
    const auto found = words.find(text);
    if (found == words.end()) return false;
    request->*member = found->second;
    return true;
  };
}

template <typename Member>
Setter TextSetter(Member member) {
  return [member](const std::string& text, Request* request) {
    std::invoke(member, request) = text;
    return true;
  };
}

// Settings of a request outside its cache.
const std::map<std::string, Setter>& Settings() {
  static const auto* settings = new std::map<std::string, Setter>{
      {"question_tokens", NumberSetter<int64_t>(&Request::question_tokens)},
      {"priority", NumberSetter<int32_t>(&Request::priority)},
      {"ttft_us", NumberSetter<int64_t>([](Request * r) -> auto& { return r->slo.ttft_us; })},
      {"tpot_us", NumberSetter<int64_t>([](Request * r) -> auto& { return r->slo.tpot_us; })},
      {"tenant", TextSetter(&Request::tenant)},
      {"cache_salt", TextSetter(&Request::cache_salt)},
      {"reuse", WordSetter<bool>(&Request::prefix_caching, {{"exact", true}, {"off", false}})},
      {"on_pressure",
       WordSetter<OnPressure>(&Request::on_pressure, {{"preempt", OnPressure::kPreempt},
                                                      {"evict", OnPressure::kEvict},
                                                      {"never", OnPressure::kNever}})}};
  return *settings;
}

absl::Status Wrong(const std::string& arm, std::string_view why) {
  return absl::InvalidArgumentError(fmt::format("mix: '{}': {}", arm, why));
}

absl::StatusOr<Arm> ParseArm(const std::string& text) {
  const std::pair<std::string, std::string> weighted =
      absl::StrSplit(text, absl::MaxSplits('@', 1));
  Arm arm{.name = weighted.first};
  constexpr double kMaxWeight = 1e9;
  const bool has_weight = weighted.first.size() < text.size();
  if (has_weight &&
      !(ParseNumber(weighted.second, &arm.weight) && arm.weight > 0.0 && arm.weight <= kMaxWeight))
    return Wrong(text, "what follows @ is its weight, a number above 0");
  const std::vector<std::string> parts = absl::StrSplit(arm.name, ':');
  if (parts[0].empty()) return Wrong(text, "it begins with the name of a policy");
  arm.request.cache.policy = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (setting.first.empty() || setting.second.empty())
      return Wrong(text, "settings are written name=value");
    const auto found = Settings().find(setting.first);
    const bool is_set = found == Settings().end()
                            ? SetCacheField(setting.first, setting.second, &arm.request.cache)
                            : found->second(setting.second, &arm.request);
    if (!is_set)
      return Wrong(text, fmt::format("{}: '{}' is no value for it", setting.first, setting.second));
  }
  return arm;
}

}  // namespace

absl::StatusOr<std::vector<Arm>> ParseMix(std::string_view text) {
  std::vector<Arm> mix;
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  for (const std::string& part : parts) {
    HYDRANT_ASSIGN_OR_RETURN(Arm arm, ParseArm(part));
    mix.push_back(std::move(arm));
  }
  return mix;
}

absl::Status CheckMix(const std::vector<Arm>& mix, const PromptShape& prompt) {
  for (const Arm& arm : mix) {
    const auto plan = PlanCache(arm.request.cache, prompt);
    if (!plan.ok()) return Wrong(arm.name, std::string(plan.status().message()));
  }
  return absl::OkStatus();
}

}  // namespace hydrant::sim
