// What a request's prompt makes of its cache: how many entries each KV head keeps, which are
// protected, by what rule decode evicts, and how the cache lives. A value: the scheduler, the
// step's batch and the engine hold copies.
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
#include "engine/cache/lifecycle.h"
#include "kernels/kv_pages.h"

namespace hydrant {

class Policy;        // engine/cache/policy_registry.h
class PromptScorer;  // engine/cache/prompt_scorer.h

inline constexpr int kMassQueries = 32;

// What a policy keeps of a request beyond its plan: only its own code looks into it.
class PolicyState {
 public:
  virtual ~PolicyState() = default;
};

// What a policy leaves open in a plan, until Decide().
enum class OpenUntil : uint8_t {
  kDecided,    // nothing
  kAdmission,  // which budget: it depends on the room in the pool
  kPromptRead  // what the scorer has observed of the prompt decides; nothing decodes before
};

struct CachePlan {
  const Policy* policy = nullptr;  // that made it; lives as long as the process
  PromptShape prompt;
  int32_t budget = kNoCap;  // C: entries a KV head keeps of the prompt, on average over its scope
  int32_t cap = kNoCap;     // entries a head of that budget holds at most
  std::vector<int32_t> layer_budgets;  // [num_layers] C of each layer; empty: `budget` in all
  BudgetShare share;
  DecodeRule rule;  // protection (sinks, recent) is in here, and holds for the prompt as well
  std::shared_ptr<const Lifecycle> life = DefaultLife();
  std::shared_ptr<const PromptScorer> scorer = DefaultScorer();
  OpenUntil open = OpenUntil::kDecided;
  std::shared_ptr<const PolicyState> state;  // may be null
  // Retained mass of the prompt is measured where something leaves.
  bool measures_mass = true;
  // Of state, that each page of its heads needs as long as the request lives, whatever becomes of
  // the plan (engine/cache/state_slabs.h). PlanCache() says it.
  int state_lines = 0;

  int32_t LayerBudget(int layer) const {
    return layer_budgets.empty() ? budget : layer_budgets[layer];
  }
  int32_t LargestBudget() const;
  // Entries that a head may take up beyond what it keeps of the prompt; kNoCap: any number.
  int32_t Growth() const { return cap == kNoCap ? kNoCap : cap - budget; }
  int32_t Protected() const { return rule.sinks + rule.recent; }
  // A head that keeps `keep` entries of the prompt.
  HeadSpan Keeping(int32_t keep) const {
    return {.dropped = static_cast<int32_t>(prompt.tokens) - keep,
            .cap = cap == kNoCap ? kNoCap : keep + Growth()};
  }
  // Of `tokens` entries a head, what the head with all the best of those that share a budget keeps.
  int32_t WidestShare(int64_t tokens) const;
  // Where a policy's heads share budgets, by plan.share: they take part in a prompt's cut from
  // `candidates` entries each. REQUIRES: budget and share are set.
  void ShareBudgets(int32_t candidates);

  // Something leaves when the prompt has been read.
  bool Compresses() const { return life->CutsPrompt(*this); }
  // And a second reading of the prompt, behind an instruction, is to say what.
  bool ReadsProbe() const;
  // Whether tokens that follow the prompt may be read many at a time, by the sum of the attention
  // that each entry receives. Rules that look at one token's attention cannot: they see tokens one
  // by one.
  bool AppendsRuns() const;
  // Whether an entry's key and value stay as they were written until another takes its place, or
  // the head is cut: then others may read its data page as their own.
  bool LeavesEntries() const { return !rule.rolling && !rule.weighted; }
  // The queries by whose attention retained mass is measured.
  int32_t MassQueries() const;

  // As the plan's life says (lifecycle.h).
  int32_t EntriesAfter(int64_t tokens) const { return life->EntriesAfter(*this, tokens); }
  int32_t MeanEntriesAfter(int64_t tokens) const { return life->MeanEntriesAfter(*this, tokens); }
  int32_t MostUntil(int64_t tokens) const { return life->MostUntil(*this, tokens); }
  bool CutsAfter(int64_t tokens) const { return life->CutsAfter(*this, tokens); }

 private:
  static std::shared_ptr<const Lifecycle> DefaultLife();
  static std::shared_ptr<const PromptScorer> DefaultScorer();  // ranks nothing
};

// C = max(min_cache_tokens, ceil(cache_ratio * prompt tokens)); max_cache_tokens alone sets it, and
// bounds it where both are given. `auto` does with neither. InvalidArgument starts with the field
// ("cache.sink_tokens: ...") and names the value and the allowed range.
absl::StatusOr<CachePlan> PlanCache(const CacheSpec& spec, const PromptShape& prompt);

// What is known later than the request.
struct Observations {
  // At admission: whether a plan fits into the request's share of what is free. Unset: nothing is
  // known of it.
  std::function<bool(const CachePlan&)> fits;
  int64_t free_pages = 0;   // for all that wait
  int64_t num_waiting = 0;  // this one included
  // The time per output token that the plan keeps to; unset: it may take any.
  std::optional<int64_t> tpot_us{};
  // When the prompt has been read: [n, layers * KV heads] that the plan's scorer has written
  // (PromptScorer::NumObservations).
  std::span<const float> of_prompt;
};
// What the plan's policy makes of them. The plan may be as open as before.
CachePlan Decide(const CachePlan& plan, const Observations& observations);

// Whether a live cache of this plan can be cut for others: its heads rank what they hold at every
// token (CacheSpec::may_shrink asks for it), and nothing is promised of that.
bool MayShrink(const CachePlan& plan);
// The plan from `tokens` seen on, when its heads are cut to `mean` entries on average by their
// running scores, and grow no more. Each keeps the same part of the `held` entries [num_layers * KV
// heads] that it has, the protected at least: of the newest a part of what there was under a cap,
// in proportion, or a quarter of the mean. REQUIRES: MayShrink(plan), rule.sinks < held, rule.sinks
// + 1 < mean < the average of held
CachePlan Shrink(const CachePlan& plan, int64_t tokens, std::span<const int32_t> held,
                 int32_t mean);

// A cache that another prompt follows, as in a conversation: C is counted anew, of all `tokens` up
// to that prompt's end, and so is what is protected. What has been evicted stays so.
struct TurnBudget {
  int32_t cap = kNoCap;  // at least the plan's; no higher: nothing changes
  DecodeRule rule;
  // [num_layers] C, where heads have no cap and so are cut when the prompt has been read; empty:
  // they are not.
  std::vector<int32_t> cut_to = {};

  // C, on average over the layers; unset: nothing is ever evicted.
  std::optional<int32_t> Mean() const;
};
// Where the plan does not append runs (CachePlan::AppendsRuns) its cache stays as it is. `spec`: of
// the request that the plan was made for.
TurnBudget BudgetOfTurn(const CachePlan& plan, const CacheSpec& spec, int64_t tokens);

// A plan that is no longer open outlives its process as the spec and the prompt that PlanCache()
// made it of, and what has been decided since.
std::string SaveDecision(const CachePlan& plan);
// InvalidArgument where no request could have come to such a plan.
absl::StatusOr<CachePlan> RestorePlan(const CacheSpec& spec, const PromptShape& prompt,
                                      std::string_view decision);

// What a policy has decided for a request, in its own words: the block's name, and named values.
struct PolicyReport {
  std::string name;
  std::vector<std::pair<std::string, std::variant<double, std::string>>> values;
};
// Of a plan that is no longer open; empty name: nothing was decided.
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
// Every policy of the registry, in the order of the documentation.
const std::vector<PolicyInfo>& ListPolicies();

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_PLAN_H_
