#include "engine/cache/policy_registry.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "kernels/ops/share_budget.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

const std::vector<const Policy*>& Table() {
  // Never destroyed, since policies have no state. One policy per row.
  // clang-format off
  static const std::vector<const Policy*>* table = new std::vector<const Policy*>{
      NewFullPolicy().release(),
      NewLocalPolicy().release(),
      NewStreamingPolicy().release(),
      NewH2oPolicy().release(),
      NewScissorhandsPolicy().release(),
      NewTovaPolicy().release(),
      NewSnapKvPolicy().release(),
      NewPyramidKvPolicy().release(),
      NewAdaSnapKvPolicy().release(),
      NewAdaPyramidPolicy().release(),
      NewAdaH2oPolicy().release(),
      NewCo2Policy().release(),
      NewReconstructPolicy().release(),
      NewEchoPolicy().release(),
      NewLearnedPolicy().release(),
      NewAutoPolicy().release(),
      NewSubGenPolicy().release(),
      NewSubGenKCenterPolicy().release(),
      NewRandomPolicy().release(),
  };
  // clang-format on
  return *table;
}

}  // namespace

absl::StatusOr<CachePlan> Policy::RestoreDecision(const CachePlan& /*open*/,
                                                  std::string_view decision) const {
  return absl::InvalidArgumentError(
      fmt::format("policy {} decides nothing, but has '{}'", Info().name, decision));
}

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

namespace {

// Candidates of a head if all layers share a budget, as a multiple of the mean budget. Important
// heads may need the whole prompt, which this allows at ratios of 1/20 and more.
constexpr double kDefaultCandidates = 20.0;
constexpr double kMaxCandidates = 1000.0;
constexpr int64_t kMaxDecodeCap = 1 << 30;

}  // namespace

absl::Status FillGroupReduce(const CacheSpec& spec, std::span<const std::string_view> reductions,
                             CachePlan* plan) {
  HYDRANT_ASSIGN_OR_RETURN(const std::string reduce, ChoiceParam(spec, "group_reduce", reductions));
  plan->rule.reduce = reduce == "max"              ? GroupReduce::kMax
                      : reduce == "sum_of_squares" ? GroupReduce::kSumOfSquares
                                                   : GroupReduce::kMean;
  return absl::OkStatus();
}

PolicyParameter GroupReduceParameter(std::span<const std::string_view> reductions) {
  return {"group_reduce", "of the attention of the query heads of a KV head",
          std::string(reductions.front()), fmt::format("{}", fmt::join(reductions, ", "))};
}

absl::Status FillScope(const CacheSpec& spec, std::span<const std::string_view> scopes,
                       CachePlan* plan, double default_floor) {
  HYDRANT_ASSIGN_OR_RETURN(std::string scope, ChoiceParam(spec, "budget_scope", scopes));
  if (!spec.params.contains("budget_scope") && scope == "model" && plan->prompt.HasFewHeads())
    scope = "head";
  HYDRANT_ASSIGN_OR_RETURN(const double floor,
                           RealParam(spec, "head_floor", default_floor, 0.0, 1.0));
  plan->share.scope = scope == "model"   ? BudgetScope::kModel
                      : scope == "layer" ? BudgetScope::kLayer
                                         : BudgetScope::kHead;
  plan->share.floor_ppm = static_cast<int32_t>(std::lround(floor * kPartsPerMillion));
  return absl::OkStatus();
}

absl::Status FillSharing(const CacheSpec& spec, std::span<const std::string_view> scopes,
                         CachePlan* plan, double default_floor) {
  HYDRANT_RETURN_IF_ERROR(FillScope(spec, scopes, plan, default_floor));
  HYDRANT_ASSIGN_OR_RETURN(const double candidates,
                           RealParam(spec, "candidates", kDefaultCandidates, 1.0, kMaxCandidates));
  plan->ShareBudgets(static_cast<int32_t>(
      std::min<double>(std::ceil(candidates * plan->budget), static_cast<double>(kNoCap))));
  return FillGroupReduce(spec, kReductions, plan);
}

std::vector<PolicyParameter> ScopeParameters(std::span<const std::string_view> scopes,
                                             double default_floor) {
  std::string scope = "the heads that share the budget by their scores";
  if (scopes.front() == "model") {
    scope += fmt::format("; unset, head where windows leave fewer than {} heads with a budget",
                         kFewHeads);
  }
  return {{"budget_scope", std::move(scope), std::string(scopes.front()),
           fmt::format("{}", fmt::join(scopes, ", "))},
          {"head_floor", "of a shared budget: the part that every head gets alike",
           fmt::format("{:g}", default_floor), "[0, 1]"}};
}

std::vector<PolicyParameter> SharingParameters(std::span<const std::string_view> scopes,
                                               double default_floor) {
  std::vector<PolicyParameter> parameters = ScopeParameters(scopes, default_floor);
  parameters.push_back(GroupReduceParameter(kReductions));
  if (std::find(scopes.begin(), scopes.end(), "model") != scopes.end()) {
    parameters.push_back({"candidates",
                          "of scope model: entries a head may come to have, times the budget",
                          fmt::format("{:g}", kDefaultCandidates), "[1, 1000]"});
  }
  return parameters;
}

absl::Status FillDecodeCap(const CacheSpec& spec, CachePlan* plan) {
  HYDRANT_ASSIGN_OR_RETURN(const int64_t cap,
                           IntegerParam(spec, "decode_cap", kNoCap, plan->budget, kMaxDecodeCap));
  plan->cap = static_cast<int32_t>(cap);
  plan->rule.scored = plan->cap != kNoCap || spec.evictable;
  return absl::OkStatus();
}

PolicyParameter DecodeCapParameter() {
  return {"decode_cap", "entries a KV head holds at most while decoding", "unset",
          fmt::format("[budget, {}]", kMaxDecodeCap)};
}

PolicyParameter RollingParameter() {
  return {"rolling", "positions count within the cache: the stream may outrun the model's context",
          "false", "false or true"};
}

absl::Status FillRolling(const CacheSpec& spec, CachePlan* plan) {
  constexpr std::array<std::string_view, 2> kChoices = {"false", "true"};
  const absl::StatusOr<std::string> rolling = ChoiceParam(spec, "rolling", kChoices);
  if (!rolling.ok()) return rolling.status();
  plan->rule.rolling = *rolling == "true";
  return absl::OkStatus();
}

PolicyParameter MaxCacheTokensParameter() {
  return {"max_cache_tokens", "entries a KV head holds at most", "unset", ">= 1"};
}

PolicyParameter CacheRatioParameter() {
  return {"cache_ratio", "the same as a share of the prompt's tokens",
          fmt::format("{} where max_cache_tokens is unset", kDefaultCacheRatio), "(0, 1]"};
}

PolicyParameter MinCacheTokensParameter() {
  return {"min_cache_tokens", "floor of the share, so that short prompts are not starved",
          std::to_string(kDefaultMinCacheTokens), ">= 0"};
}

}  // namespace hydrant
