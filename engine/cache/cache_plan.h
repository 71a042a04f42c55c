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

// The cache fields of a request, as the client set them. Unset fields take the policy's defaults.
struct CacheSpec {
  std::string policy = "full";
  std::optional<int64_t> max_cache_tokens;
  std::optional<double> cache_ratio;
  std::optional<int64_t> min_cache_tokens;  // floor of the ratio, default 128
  std::optional<int64_t> sink_tokens;
  std::optional<int64_t> protected_window_size;
  std::map<std::string, std::string> params;  // a policy's own parameters by name
};

// How a prompt's entries are ranked when it is compressed.
enum class PromptScore : uint8_t {
  kNone,        // nothing is ranked: everything stays, or the recent window alone decides
  kColumnSums,  // exact accumulated attention (H2O)
  kWindow,      // what the last queries pay, pooled over neighbours (SnapKV)
  kKCenter,     // the order in which a greedy k-center of the keys chooses them
};

// Of PromptScore::kWindow.
struct WindowScore {
  int32_t queries = 0;  // the last of the prompt
  Pooling pooling = Pooling::kMax;
  int32_t kernel = 1;  // odd; positions before the window are pooled, 1: none
};

struct CachePlan {
  int32_t budget = kNoCap;  // C: entries a KV head keeps of the prompt
  int32_t cap = kNoCap;     // entries a KV head holds at most
  // Entries of the prompt that leave without making room below the cap: the cache grows on from
  // what is left.
  int32_t dropped = 0;
  // Tokens: until more have been seen nothing leaves, then the cache shrinks to the cap, which is
  // no more. 0: the prompt is compressed at once.
  int32_t whole_until = 0;
  PromptScore prompt_score = PromptScore::kNone;
  bool mean_scores = false;  // the prompt's scores are divided by its length
  WindowScore window;
  SubGenRule subgen;  // where rule.weighted: how a cache at its cap is made up
  DecodeRule rule;    // protection (sinks, recent) is in here, and holds for the prompt as well

  // Whether the prompt is ranked by sums of attention weights.
  bool SumsColumns() const {
    return prompt_score == PromptScore::kColumnSums || prompt_score == PromptScore::kWindow;
  }

  // Entries a head holds after `tokens` tokens of the sequence, its prompt at least, have been
  // seen.
  int32_t EntriesAfter(int64_t tokens) const {
    if (tokens <= whole_until) return static_cast<int32_t>(tokens);
    const int64_t entries = tokens - dropped;
    return entries < cap ? static_cast<int32_t>(std::max<int64_t>(entries, 0)) : cap;
  }
  // The most it has held on the way there.
  int32_t MostUntil(int64_t tokens) const {
    return std::max(EntriesAfter(tokens), EntriesAfter(std::min<int64_t>(tokens, whole_until)));
  }
};

// C = max(min_cache_tokens, ceil(cache_ratio * prompt_tokens)); max_cache_tokens alone sets it, and
// bounds it where both are given. InvalidArgument starts with the field ("cache.sink_tokens: ...")
// and names the value and the allowed range.
absl::StatusOr<CachePlan> PlanCache(const CacheSpec& spec, int64_t prompt_tokens);

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
