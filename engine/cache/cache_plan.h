// What a request asks of its KV cache (CacheSpec), the policies there are, and what a request's
// prompt makes of it (CachePlan): how many entries each KV head keeps, which are protected, and by
// what rule decode evicts. Plain data.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_PLAN_H_
#define HYDRANT_ENGINE_CACHE_CACHE_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kv_pages.h"
#include "kernels/pool_scores.h"
#include "kernels/subgen.h"

namespace hydrant {

inline constexpr int32_t kNoCap = std::numeric_limits<int32_t>::max();
inline constexpr int kDefaultMinCacheTokens = 128;
inline constexpr int kMassQueries = 32;

// The cache fields of a request, as the client set them. Unset fields take the policy's defaults.
struct CacheSpec {
  std::string policy = "full";
  std::optional<int64_t> max_cache_tokens;
  std::optional<double> cache_ratio;
  std::optional<int64_t> min_cache_tokens;  // floor of the ratio, default 128
  std::optional<int64_t> sink_tokens;
  std::optional<int64_t> protected_window_size;
  std::map<std::string, std::string> params;  // a policy's own parameters by name
  // Of the attention that the prompt's last queries pay, the share that every head is to retain.
  std::optional<double> min_retained_mass;
};

class PromptScorer;  // engine/cache/prompt_scorer.h

// How a prompt's entries are ranked when it is compressed: by a scorer, which stands in the file of
// the policy that brings it. Those that are named outside that file, too, are listed here.
struct PromptScore {
  static const PromptScorer* const kNone;        // nothing is ranked
  static const PromptScorer* const kColumnSums;  // exact accumulated attention (H2O)
  static const PromptScorer* const kWindow;      // what the last queries pay, pooled (SnapKV)
  static const PromptScorer* const kLayerMean;   // the same, its mean over the heads (TOVA)
  static const PromptScorer* const kBelowMean;   // how few pay less than their mean (Scissorhands)
  static const PromptScorer* const kProbe;       // what a second reading of it pays (KVzip)
  static const PromptScorer* const kEcho;        // what its own queries pay, asked from behind it
  static const PromptScorer* const kProbeAndEcho;  // what both pay
  static const PromptScorer* const kTuned;         // early and late queries, as tuning weighs them
  static const PromptScorer* const kKCenter;       // the order of a greedy k-center of the keys
};

// Of PromptScore::kWindow, kLayerMean and kBelowMean.
struct WindowScore {
  int32_t queries = 0;  // the last of the prompt
  Pooling pooling = Pooling::kMax;
  int32_t kernel = 1;  // odd; positions before the window are pooled, 1: none
};

// Of PromptScore::kProbe and kEcho: what the asking queries pay, their sum and their maximum.
struct ProbeScore {
  float sum_weight = 1.0f;
  float max_weight = 5.0f;
  bool value_norms = false;  // times the length of the entry's value
};

// The heads that share a budget of entries. Within one a head gets more than another where more of
// the best entries are its own (kernels/share_budget.h).
enum class BudgetScope : uint8_t {
  kHead,   // every head keeps as many as every other of its layer
  kLayer,  // the heads of a layer (Ada-KV)
  kModel,  // all heads of all layers
};

// What a prompt is to its cache.
struct PromptShape {
  int64_t tokens = 0;
  int num_layers = 1;
  int num_kv_heads = 1;
  int64_t question_tokens = 0;  // that follow it: a question that it is to be compressed without
  bool fits_twice = false;      // there is room to read it a second time

  bool AskedLater() const { return question_tokens > 0; }
};

// A plan that finds its own decay, FIFO share and measuring steps
// (engine/cache/policies/self_tuning.h): open until the prompt has been read, and the same from
// then on.
struct SelfTuning {
  bool on = false;
  bool decided = false;
  int32_t most_steps = 0;  // generated tokens for which the prompt may stay whole
  // Once decided: what was chosen, and the attention of the held-out queries that it would have
  // retained, and that any choice could have.
  double alpha = 0.0;
  double rho = 0.0;
  int32_t steps = 0;
  double retained = 0.0;
  double attainable = 0.0;

  bool IsOpen() const { return on && !decided; }
};

// The entries of one head from the end of the prompt on.
struct HeadSpan {
  int32_t dropped = 0;   // tokens of the prompt that are no entries
  int32_t cap = kNoCap;  // entries at most
  int32_t drop = 0;      // entries that leave at once before one comes to a head at its cap; 0: one

  // The most it has held when so many tokens of the sequence have been seen.
  int32_t MostUntil(int64_t tokens) const {
    const int64_t entries = tokens - dropped;
    return entries < cap ? static_cast<int32_t>(std::max<int64_t>(entries, 0)) : cap;
  }
  int32_t EntriesAfter(int64_t tokens) const {
    const int64_t entries = tokens - dropped;
    if (drop == 0 || entries <= cap) return MostUntil(tokens);
    return cap - drop + 1 + static_cast<int32_t>((entries - cap - 1) % drop);
  }
  bool operator==(const HeadSpan&) const = default;
};

// What `auto` made of a request.
struct AutoChoice {
  std::string policy;  // that it acts as; empty: the request named one itself
  std::string why;
};

struct CachePlan {
  PromptShape prompt;
  int32_t budget = kNoCap;  // C: entries a KV head keeps of the prompt, on average over its scope
  int32_t cap = kNoCap;     // entries a head of that budget holds at most
  std::vector<int32_t> layer_budgets;  // [num_layers] C of each layer; empty: `budget` in all
  BudgetScope scope = BudgetScope::kHead;
  int32_t floor_ppm = 200000;  // of a shared budget: the part that all heads get alike
  int32_t candidates = 0;      // of kModel: entries a head holds until all layers have been read
  // Where compression would leave a head with less of the attention that the prompt's last queries
  // pay, the head keeps more, up to most_for_mass entries, or else everything. 0: it may be less.
  float min_retained_mass = 0.0f;
  int32_t most_for_mass = kNoCap;
  bool echo_mass = false;  // retained mass is of the attention that an echo's queries pay
  // Tokens: until more have been seen nothing leaves, then the cache shrinks to the cap, which is
  // no more. 0: the prompt is compressed at once.
  int32_t whole_until = 0;
  // Entries that leave at once before a token comes to a cache at its cap: it shrinks again and
  // again. 0: one entry leaves for each. Not of a plan that is ragged, or whole for a while.
  int32_t drop = 0;
  const PromptScorer* prompt_score = PromptScore::kNone;
  bool mean_scores = false;  // the prompt's scores are divided by its length
  WindowScore window;
  ProbeScore probe;
  SelfTuning tuning;
  SubGenRule subgen;  // where rule.weighted: how a cache at its cap is made up
  // The request named neither a budget nor a quality: whoever admits it may give it another budget.
  bool open_budget = false;
  AutoChoice choice;
  DecodeRule rule;  // protection (sinks, recent) is in here, and holds for the prompt as well

  int32_t LayerBudget(int layer) const {
    return layer_budgets.empty() ? budget : layer_budgets[layer];
  }
  int32_t LargestBudget() const;
  // Entries that a head may take up beyond what it keeps of the prompt; kNoCap: any number.
  int32_t Growth() const { return cap == kNoCap ? kNoCap : cap - budget; }
  int32_t Protected() const { return rule.sinks + rule.recent; }

  // Something leaves when the prompt has been read.
  bool Compresses() const;
  // And a second reading of the prompt, behind an instruction, is to say what.
  bool ReadsProbe() const;
  // How much each head keeps is known only when the prompt has been compressed.
  bool IsRagged() const {
    return Compresses() && (scope != BudgetScope::kHead || min_retained_mass > 0.0f);
  }
  // Ragged, and decided from the pages of all layers: until then a head holds Candidates().
  bool IsDeferred() const {
    return Compresses() && (scope == BudgetScope::kModel || min_retained_mass > 0.0f);
  }
  // The same of a cache that is whole for a while, from when it shrinks.
  bool ShrinksRagged() const { return whole_until > 0 && scope != BudgetScope::kHead; }
  int32_t Candidates() const;
  // The queries by whose attention retained mass is measured: the prompt's last, or all of its
  // echo.
  int32_t MassQueries() const {
    return static_cast<int32_t>(echo_mass ? prompt.tokens
                                          : std::min<int64_t>(kMassQueries, prompt.tokens));
  }
  // No head keeps more of the prompt.
  int32_t WidestKeep() const;
  // Of `tokens` entries a head, what the head with all the best of those that share a budget keeps.
  int32_t WidestShare(int64_t tokens) const;

  // A head that keeps `keep` entries of the prompt.
  HeadSpan Keeping(int32_t keep) const;
  // Every head of a layer, where the plan is not ragged; once the cache has shrunk, if it does.
  HeadSpan LayerSpan(int layer) const;
  // Entries that it holds when the prompt has been read.
  int32_t KeptOfPrompt(int layer) const {
    const auto n = static_cast<int32_t>(prompt.tokens);
    return whole_until > 0 ? n : LayerSpan(layer).EntriesAfter(n);
  }

  // A bound of the entries that any head holds after `tokens` tokens of the sequence, its prompt at
  // least, have been seen; where the plan is not ragged, those of the fullest.
  int32_t EntriesAfter(int64_t tokens) const;
  // About what a head holds then on average, in the fullest layer: a device estimates its work by
  // it. Of heads that keep more than their budget to retain enough, the least they hold.
  int32_t MeanEntriesAfter(int64_t tokens) const;
  // The most that any head has held on the way there.
  int32_t MostUntil(int64_t tokens) const {
    if (drop > 0) return LayerSpan(0).MostUntil(tokens);
    return std::max(EntriesAfter(tokens), EntriesAfter(std::min<int64_t>(tokens, whole_until)));
  }

  // Whether the cache shrinks when so many tokens have been seen, before the next one comes; then
  // every head keeps ShrunkEntries(), on average where ShrinksRagged().
  bool ShrinksAfter(int64_t tokens) const {
    if (whole_until > 0) return tokens == whole_until;
    return drop > 0 && LayerSpan(0).EntriesAfter(tokens) == cap;
  }
  int32_t ShrunkEntries() const { return cap - drop; }
};

// C = max(min_cache_tokens, ceil(cache_ratio * prompt tokens)); max_cache_tokens alone sets it, and
// bounds it where both are given. `auto` does with neither. InvalidArgument starts with the field
// ("cache.sink_tokens: ...") and names the value and the allowed range.
absl::StatusOr<CachePlan> PlanCache(const CacheSpec& spec, const PromptShape& prompt);

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
