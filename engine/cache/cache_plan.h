// The cache plan of a request: how many entries each KV head keeps of the prompt, which are
// protected, the eviction rule of decode, and the cache's retention schedule. A value: the
// scheduler, the step's batch and the engine hold copies.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_PLAN_H_
#define HYDRANT_ENGINE_CACHE_CACHE_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_spec.h"
#include "engine/cache/head_budget.h"
#include "engine/cache/retention_schedule.h"
#include "kernels/kv_pages.h"

namespace hydrant {

class Policy;        // engine/cache/policy_registry.h
class PromptScorer;  // engine/cache/prompt_scorer.h

inline constexpr int kMassQueries = 32;

// State of a policy for a request, beside its plan; only the policy's own code reads it.
class PolicyState {
 public:
  virtual ~PolicyState() = default;
};

// The open part of a plan, until Resolve().
enum class ResolveAt : uint8_t {
  kResolved,   // nothing is open
  kAdmission,  // the budget, which depends on the free pages
  kPrefilled   // depends on the scorer's observations of the prompt; no decode before
};

struct CachePlan {
  const Policy* policy = nullptr;  // made the plan; lives as long as the process
  PromptShape prompt;
  int32_t budget = kNoCap;  // C: entries a KV head keeps of the prompt, on average over its scope
  int32_t cap = kNoCap;     // maximum entries of a head with that budget
  std::vector<int32_t> layer_budgets;  // [num_layers] C of each layer; empty: `budget` in all
  BudgetShare share;
  DecodeRule rule;  // its protection (sinks, recent) applies to the prompt as well
  std::shared_ptr<const RetentionSchedule> retention = DefaultRetention();
  std::shared_ptr<const PromptScorer> scorer = DefaultScorer();
  ResolveAt resolve_at = ResolveAt::kResolved;
  std::shared_ptr<const PolicyState> state;  // may be null
  // Whether retained mass of the prompt is measured if entries are evicted.
  bool measures_mass = true;
  // Lines of state that each page of its heads needs (engine/cache/state_slabs.h). Set by
  // PlanCache() and constant for the whole request, even if the plan changes.
  int state_lines = 0;

  int32_t LayerBudget(int layer) const {
    return layer_budgets.empty() ? budget : layer_budgets[layer];
  }
  int32_t LargestBudget() const;
  // Entries that a head may append to those it keeps of the prompt; kNoCap: no limit.
  int32_t Growth() const { return cap == kNoCap ? kNoCap : cap - budget; }
  int32_t Protected() const { return rule.sinks + rule.recent; }
  // The span of a head that keeps `keep` entries of the prompt.
  HeadSpan Keeping(int32_t keep) const {
    return {.dropped = static_cast<int32_t>(prompt.tokens) - keep,
            .cap = cap == kNoCap ? kNoCap : keep + Growth()};
  }
  // The most entries that one head can keep under a shared budget, if each head has `tokens` and
  // all of the best are in this one.
  int32_t MaxShare(int64_t tokens) const;
  // Sets the retention schedule if plan.share says that heads share budgets; each takes part in the
  // prompt's compaction with `candidates` entries. REQUIRES: budget and share are set.
  void ShareBudgets(int32_t candidates);

  // Whether entries of the prompt are evicted at the end of its prefill.
  bool Compresses() const { return retention->CompactsPrompt(*this); }
  // Whether a second pass over the prompt, after an instruction, decides which.
  bool ReadsProbe() const;
  // Whether tokens after the prompt may be prefilled in chunks and scored by the total attention of
  // each entry. Rules that depend on the attention of single tokens need one token at a time.
  bool AppendsRuns() const;
  // Whether appended tokens are scored for the compaction of a later turn (TurnRun): no cap makes
  // entries compete all along.
  bool ScoresTurns() const;
  // Whether the prompt's entries get scores.
  bool ScoresPrompt() const;
  // Whether an entry's key and value stay as written until it is overwritten, or the head is
  // compacted: then other sequences may share its page.
  bool KeepsEntriesInPlace() const { return !rule.rolling && !rule.weighted; }
  // Number of queries by which retained mass is measured.
  int32_t MassQueries() const;

  // By the plan's retention schedule (retention_schedule.h).
  int32_t EntriesAfter(int64_t tokens) const { return retention->EntriesAfter(*this, tokens); }
  int32_t MeanEntriesAfter(int64_t tokens) const {
    return retention->MeanEntriesAfter(*this, tokens);
  }
  int32_t PeakEntries(int64_t tokens) const { return retention->PeakEntries(*this, tokens); }
  bool CompactsAfter(int64_t tokens) const { return retention->CompactsAfter(*this, tokens); }

 private:
  static std::shared_ptr<const RetentionSchedule> DefaultRetention();
  static std::shared_ptr<const PromptScorer> DefaultScorer();  // ranks nothing
};

// C = max(min_cache_tokens, ceil(cache_ratio * prompt tokens)); max_cache_tokens alone sets it, and
// limits it if both are given. With neither, the policy's default ratio applies. InvalidArgument
// starts with the field ("cache.sink_tokens: ...") and names the value and the allowed range.
absl::StatusOr<CachePlan> PlanCache(const CacheSpec& spec, const PromptShape& prompt);

// Facts for Resolve() that are known later than the request.
struct ResolveInputs {
  // At admission: whether a plan fits into the request's share of the free pages. Unset: unknown.
  std::function<bool(const CachePlan&)> fits;
  int64_t free_pages = 0;   // for all waiting requests
  int64_t num_waiting = 0;  // this one included
  // The target time per output token of the plan; unset: none.
  std::optional<int64_t> tpot_us{};
  // After prefill: [n, layers * KV heads] as written by the plan's scorer
  // (PromptScorer::NumObservations).
  std::span<const float> of_prompt;
};
// The plan as decided by its policy; it may still be open.
CachePlan Resolve(const CachePlan& plan, const ResolveInputs& inputs);

// Whether a live cache of this plan can be shrunk in favour of other requests: its heads score
// their entries at every token (CacheSpec::evictable), and no retained mass is guaranteed.
bool CanShrink(const CachePlan& plan);
// The plan after `tokens` tokens with heads compacted by their running scores to `mean` entries on
// average, and without further growth. held: [num_layers * KV heads] entries before the compaction;
// each head keeps the same part of them, at least the protected ones. rule.recent shrinks in
// proportion to the cap; without a cap it becomes at least a quarter of the mean. REQUIRES:
// CanShrink(plan), rule.sinks < held, rule.sinks + 1 < mean < the average of held
CachePlan Shrink(const CachePlan& plan, int64_t tokens, std::span<const int32_t> held,
                 int32_t mean);

// The budget of a cache with another prompt appended, as in a conversation: C and the protection
// are computed anew for all `tokens` up to the end of that prompt. Evicted entries stay evicted.
struct AppendBudget {
  int32_t cap = kNoCap;  // at least the plan's; equal: nothing changes
  DecodeRule rule;
  // [num_layers] C for heads without a cap, which are compacted after the prefill; empty: they are
  // not.
  std::vector<int32_t> compact_to = {};

  // C, on average over the layers; unset: nothing is ever evicted.
  std::optional<int32_t> Mean() const;
};
// The cache stays as it is if the plan does not append runs (CachePlan::AppendsRuns). spec: of the
// request that the plan was made for.
AppendBudget BudgetAfterAppend(const CachePlan& plan, const CacheSpec& spec, int64_t tokens);

// For a decided plan: the policy's decision since PlanCache(). Another process restores the plan
// from it, the spec and the prompt.
std::string SaveDecision(const CachePlan& plan);
// InvalidArgument: the decision is impossible for this spec and prompt.
absl::StatusOr<CachePlan> RestorePlan(const CacheSpec& spec, const PromptShape& prompt,
                                      std::string_view decision);

// The decisions of a policy for a request: the name of the block, and named values.
struct PolicyReport {
  std::string name;
  std::vector<std::pair<std::string, std::variant<double, std::string>>> values;
};
// For a decided plan; empty name: there was nothing to decide.
PolicyReport ReportOf(const CachePlan& plan);

struct PolicyParameter {
  std::string name;
  std::string description;
  std::string default_value;
  std::string range;
};
struct PolicyInfo {
  std::string name;
  std::string description;
  std::vector<PolicyParameter> parameters;
};
// All policies of the registry, in the order of the documentation.
const std::vector<PolicyInfo>& ListPolicies();

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_PLAN_H_
