#include "engine/cache/cache_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/cache/policy_registry.h"
#include "engine/cache/prompt_scorer.h"
#include "engine/cache/prompt_statistics.h"
#include "engine/cache/state_slabs.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "kernels/ops/share_budget.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::Status CheckRanges(const CacheSpec& spec) {
  if (spec.max_cache_tokens && *spec.max_cache_tokens < 1) {
    return Invalid(fmt::format("cache.max_cache_tokens: {} is below 1", *spec.max_cache_tokens));
  }
  if (spec.cache_ratio && !(*spec.cache_ratio > 0.0 && *spec.cache_ratio <= 1.0)) {
    return Invalid(fmt::format("cache.cache_ratio: {} is outside (0, 1]", *spec.cache_ratio));
  }
  const auto below_zero = [](const std::optional<int64_t>& value) { return value && *value < 0; };
  if (below_zero(spec.min_cache_tokens)) {
    return Invalid(fmt::format("cache.min_cache_tokens: {} is below 0", *spec.min_cache_tokens));
  }
  if (below_zero(spec.sink_tokens)) {
    return Invalid(fmt::format("cache.sink_tokens: {} is below 0", *spec.sink_tokens));
  }
  if (below_zero(spec.protected_window_size)) {
    return Invalid(
        fmt::format("cache.protected_window_size: {} is below 0", *spec.protected_window_size));
  }
  return absl::OkStatus();
}

// ceil(ratio * n), where a product within rounding error of an integer is that integer: 0.07 * 100
// is 7 entries, not 8.
int64_t CeilOfShare(double ratio, int64_t n) {
  const double product = ratio * static_cast<double>(n);
  const double nearest = std::round(product);
  if (std::abs(product - nearest) <= 1e-9 * std::max(1.0, product))
    return static_cast<int64_t>(nearest);
  return static_cast<int64_t>(std::ceil(product));
}

// C: the budget of a KV head, in entries.
int32_t Capacity(const CacheSpec& spec, int64_t prompt_tokens, const Policy& policy) {
  int64_t capacity = spec.max_cache_tokens.value_or(kNoCap);
  if (spec.cache_ratio || !spec.max_cache_tokens) {
    const double ratio = spec.cache_ratio.value_or(policy.DefaultRatio(spec));
    const int64_t floor = spec.min_cache_tokens.value_or(kDefaultMinCacheTokens);
    capacity = std::min(capacity, std::max({floor, CeilOfShare(ratio, prompt_tokens), int64_t{1}}));
  }
  return static_cast<int32_t>(std::min<int64_t>(capacity, kNoCap));
}

absl::Status CheckKeepsEverything(const CacheSpec& spec) {
  if (spec.max_cache_tokens) {
    return Invalid(
        fmt::format("cache.max_cache_tokens: {} given, but policy full keeps every entry; leave it "
                    "unset",
                    *spec.max_cache_tokens));
  }
  if (spec.cache_ratio && *spec.cache_ratio < 1.0) {
    return Invalid(fmt::format(
        "cache.cache_ratio: {} given, but policy full keeps every entry; leave it unset or 1",
        *spec.cache_ratio));
  }
  if (spec.min_cache_tokens) {
    return Invalid(
        fmt::format("cache.min_cache_tokens: {} given, but policy full keeps every entry; leave it "
                    "unset",
                    *spec.min_cache_tokens));
  }
  return absl::OkStatus();
}

std::string PolicyNames() {
  std::string names;
  for (const PolicyInfo& info : ListPolicies()) names += (names.empty() ? "" : ", ") + info.name;
  return names;
}

// Parameters with request fields of their own, which `params` must not set.
bool IsField(std::string_view name) {
  return name == "max_cache_tokens" || name == "cache_ratio" || name == "min_cache_tokens" ||
         name == "sink_tokens" || name == "protected_window_size";
}

absl::Status CheckParams(const CacheSpec& spec, const PolicyInfo& info) {
  std::vector<std::string_view> own;
  for (const PolicyParameter& parameter : info.parameters) {
    if (!IsField(parameter.name)) own.push_back(parameter.name);
  }
  for (const auto& [name, value] : spec.params) {
    if (std::find(own.begin(), own.end(), name) != own.end()) continue;
    if (IsField(name)) {
      return Invalid(
          fmt::format("cache.params: '{}' is a field of its own; set cache.{}", name, name));
    }
    return Invalid(
        fmt::format("cache.params: '{}' is no parameter of policy {}; {}", name, spec.policy,
                    own.empty() ? "it has none" : fmt::format("one of {}", fmt::join(own, ", "))));
  }
  return absl::OkStatus();
}

// A field that the policy does not take is rejected rather than ignored.
absl::Status CheckTaken(const CacheSpec& spec, const Policy& policy) {
  const PolicyInfo info = policy.Info();
  const auto takes = [&](std::string_view name) {
    return std::any_of(info.parameters.begin(), info.parameters.end(),
                       [&](const PolicyParameter& parameter) { return parameter.name == name; });
  };
  if (spec.sink_tokens && !takes("sink_tokens")) {
    return Invalid(fmt::format("cache.sink_tokens: policy {} does not take it", spec.policy));
  }
  if (spec.protected_window_size && !takes("protected_window_size")) {
    return Invalid(
        fmt::format("cache.protected_window_size: policy {} does not take it", spec.policy));
  }
  return CheckParams(spec, info);
}

// Heads below min_retained_mass keep more entries, up to max_cache_tokens.
absl::Status FillGuard(const CacheSpec& spec, const Policy& policy, CachePlan* plan) {
  if (!spec.min_retained_mass) return absl::OkStatus();
  const double mass = *spec.min_retained_mass;
  if (!(mass > 0.0 && mass <= 1.0))
    return Invalid(fmt::format("cache.min_retained_mass: {} is outside (0, 1]", mass));
  if (!policy.Evicts()) return absl::OkStatus();  // all of it is retained
  if (const char* why = policy.CheckMassGuarantee(*plan); why != nullptr) {
    return Invalid(
        fmt::format("cache.min_retained_mass: {} given, but policy {} {}", mass, spec.policy, why));
  }
  if (!plan->Compresses()) return absl::OkStatus();
  plan->retention = std::make_shared<CandidateRetention>(
      static_cast<float>(mass),
      static_cast<int32_t>(std::min<int64_t>(spec.max_cache_tokens.value_or(kNoCap), kNoCap)));
  return absl::OkStatus();
}

// Compaction in pages does not support rolling heads, where positions are ranks.
absl::Status CheckRolling(const CacheSpec& spec, const CachePlan& plan) {
  if (!plan.rule.rolling || (plan.share.scope != BudgetScope::kModel && !spec.min_retained_mass))
    return absl::OkStatus();
  return Invalid(
      fmt::format("cache.params.rolling: true does not go with {}",
                  spec.min_retained_mass ? "min_retained_mass" : "a budget_scope of model"));
}

absl::Status CheckProtection(const CacheSpec& spec, const CachePlan& plan) {
  const int64_t guarded = int64_t{plan.rule.sinks} + plan.rule.recent;
  if (plan.share.scope != BudgetScope::kHead && guarded == 0) {
    return Invalid(
        "cache.protected_window_size: 0 may leave a head without any entry where heads share a "
        "budget; at least 1, or sink_tokens at least 1");
  }
  if (guarded <= plan.budget) return absl::OkStatus();
  return Invalid(
      fmt::format("cache.{}: the budget of {} entries a head is below sink_tokens + "
                  "protected_window_size = {} + {}",
                  spec.BudgetField(), RequestedBudget(spec, plan.budget),
                  spec.sink_tokens.value_or(plan.rule.sinks),
                  spec.protected_window_size.value_or(plan.rule.recent)));
}

// State per page that the rule, the scorer and compactions need. A cache without a cap needs scores
// too: it is compacted after the prefill of a conversation's next turn (AppendBudget::compact_to).
int StateLinesOf(const CachePlan& plan) {
  const DecodeRule& rule = plan.rule;
  if (rule.weighted || rule.revision == Revision::kBelowMean ||
      plan.resolve_at == ResolveAt::kPrefilled || MeasuresMassInPages(plan))
    return kAllStateLines;
  return !plan.policy->Evicts() || rule.by_position ? kNoStateLines : kScoreLines;
}

// For a model with a window in every layer: policies have no layer to act on.
CachePlan PlanOfNoLayer(const PromptShape& prompt) {
  CachePlan plan;
  plan.policy = FindPolicy("full");
  plan.prompt = prompt;
  return plan;
}

}  // namespace

std::shared_ptr<const RetentionSchedule> CachePlan::DefaultRetention() {
  static const auto retention = std::make_shared<const CompactAtPrefill>();
  return retention;
}

std::shared_ptr<const PromptScorer> CachePlan::DefaultScorer() {
  static const auto scorer = std::make_shared<const PromptScorer>();
  return scorer;
}

int32_t CachePlan::LargestBudget() const {
  return layer_budgets.empty() ? budget
                               : *std::max_element(layer_budgets.begin(), layer_budgets.end());
}

bool CachePlan::AppendsRuns() const {
  return !rule.rolling && !rule.weighted && rule.revision == Revision::kNone &&
         rule.decay == 1.0f && rule.gain == 1.0f && !retention->CompactsWithoutCaps();
}

bool CachePlan::ReadsProbe() const { return Compresses() && scorer->ReadsProbe(); }

bool CachePlan::ScoresTurns() const { return AppendsRuns() && cap == kNoCap && policy->Evicts(); }

bool CachePlan::ScoresPrompt() const {
  return scorer != DefaultScorer() && scorer->ScoresAttention();
}

int32_t CachePlan::MassQueries() const {
  return static_cast<int32_t>(scorer->MeasuresMassByEcho()
                                  ? prompt.tokens
                                  : std::min<int64_t>(kMassQueries, prompt.tokens));
}

int32_t CachePlan::MaxShare(int64_t tokens) const {
  const int64_t heads =
      int64_t{prompt.num_kv_heads} * (share.scope == BudgetScope::kModel ? prompt.num_layers : 1);
  const int64_t base = LargestBudget() - Protected();
  const int64_t all =
      int64_t{share.floor_ppm} * base + int64_t{kPartsPerMillion - share.floor_ppm} * base * heads;
  return static_cast<int32_t>(
      std::min<int64_t>(tokens, Protected() + (all + kPartsPerMillion - 1) / kPartsPerMillion));
}

void CachePlan::ShareBudgets(int32_t candidates) {
  if (share.scope == BudgetScope::kHead || !Compresses()) return;
  if (share.scope == BudgetScope::kLayer) {
    retention = std::make_shared<LayerSharedRetention>();
  } else {
    retention = std::make_shared<CandidateRetention>(candidates);
  }
}

absl::StatusOr<CachePlan> PlanCache(const CacheSpec& spec, const PromptShape& prompt) {
  const Policy* policy = FindPolicy(spec.policy);
  if (policy == nullptr) {
    return Invalid(
        fmt::format("cache.cache_policy: '{}' is unknown; one of {}", spec.policy, PolicyNames()));
  }
  HYDRANT_RETURN_IF_ERROR(CheckRanges(spec));
  HYDRANT_RETURN_IF_ERROR(CheckTaken(spec, *policy));
  CachePlan plan;
  plan.policy = policy;
  plan.prompt = prompt;
  if (policy->Evicts()) {
    plan.budget = plan.cap = Capacity(spec, prompt.tokens, *policy);
  } else {
    HYDRANT_RETURN_IF_ERROR(CheckKeepsEverything(spec));
  }
  HYDRANT_RETURN_IF_ERROR(policy->Fill(spec, &plan));
  HYDRANT_RETURN_IF_ERROR(CheckProtection(spec, plan));
  HYDRANT_RETURN_IF_ERROR(CheckRolling(spec, plan));
  HYDRANT_RETURN_IF_ERROR(FillGuard(spec, *policy, &plan));
  if (prompt.num_layers == 0) return PlanOfNoLayer(prompt);
  plan.state_lines = StateLinesOf(plan);
  return plan;
}

CachePlan Resolve(const CachePlan& plan, const ResolveInputs& inputs) {
  return plan.policy->Resolve(plan, inputs);
}

bool CanShrink(const CachePlan& plan) {
  return plan.resolve_at != ResolveAt::kPrefilled && plan.rule.scored &&
         plan.KeepsEntriesInPlace() && plan.retention->CanShrink();
}

CachePlan Shrink(const CachePlan& plan, int64_t tokens, std::span<const int32_t> held,
                 int32_t mean) {
  const auto [fewest, most] = std::minmax_element(held.begin(), held.end());
  const int64_t sum = std::accumulate(held.begin(), held.end(), int64_t{0});
  const int64_t kept = int64_t{mean} * static_cast<int64_t>(held.size());
  CachePlan shrunk = plan;
  int32_t& recent = shrunk.rule.recent;
  recent = plan.cap != kNoCap ? static_cast<int32_t>(int64_t{recent} * mean / plan.cap)
                              : std::max(recent, mean / 4);
  recent = std::min(recent, std::min(mean, *fewest) - plan.rule.sinks);
  // One entry more than the sinks, so that one can be evicted.
  const int64_t least = int64_t{plan.rule.sinks} + std::max(recent, 1);
  std::vector<int32_t> keep;
  keep.reserve(held.size());
  for (const int32_t entries : held)
    keep.push_back(static_cast<int32_t>(std::max(least, entries * kept / sum)));
  shrunk.cap = mean;
  shrunk.retention = std::make_shared<ShrunkRetention>(tokens, *most, std::move(keep));
  return shrunk;
}

std::optional<int32_t> AppendBudget::Mean() const {
  if (compact_to.empty()) return cap == kNoCap ? std::nullopt : std::optional(cap);
  const int64_t sum = std::accumulate(compact_to.begin(), compact_to.end(), int64_t{0});
  return static_cast<int32_t>(sum / static_cast<int64_t>(compact_to.size()));
}

AppendBudget BudgetAfterAppend(const CachePlan& plan, const CacheSpec& spec, int64_t tokens) {
  AppendBudget budget = {plan.cap, plan.rule};
  if (!plan.AppendsRuns()) return budget;
  PromptShape all = plan.prompt;
  all.tokens = tokens;
  all.question_tokens = 0;
  const absl::StatusOr<CachePlan> made = PlanCache(spec, all);
  if (!made.ok() || made->resolve_at == ResolveAt::kAdmission || made->budget == kNoCap)
    return budget;
  if (plan.cap == kNoCap) {
    for (int layer = 0; layer < plan.prompt.num_layers; ++layer)
      budget.compact_to.push_back(made->LayerBudget(layer));
  } else if (made->cap != kNoCap && made->cap > plan.cap) {
    budget.cap = made->cap;
    budget.rule.sinks = made->rule.sinks;
    budget.rule.recent = made->rule.recent;
  }
  return budget;
}

std::string SaveDecision(const CachePlan& plan) {
  return plan.policy == nullptr ? std::string() : plan.policy->SaveDecision(plan);
}

absl::StatusOr<CachePlan> RestorePlan(const CacheSpec& spec, const PromptShape& prompt,
                                      std::string_view decision) {
  HYDRANT_ASSIGN_OR_RETURN(CachePlan plan, PlanCache(spec, prompt));
  plan = Resolve(plan, ResolveInputs());
  if (!decision.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(plan, plan.policy->RestoreDecision(plan, decision));
  }
  if (plan.resolve_at == ResolveAt::kResolved) return plan;
  return Invalid(fmt::format("the cache of policy {} has not been decided", spec.policy));
}

PolicyReport ReportOf(const CachePlan& plan) {
  return plan.policy == nullptr ? PolicyReport() : plan.policy->Report(plan);
}

const std::vector<PolicyInfo>& ListPolicies() {
  static const std::vector<PolicyInfo> infos = [] {
    std::vector<PolicyInfo> list;
    for (const Policy* policy : Policies()) list.push_back(policy->Info());
    return list;
  }();
  return infos;
}

}  // namespace hydrant
