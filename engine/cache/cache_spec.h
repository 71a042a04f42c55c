// What a request asks of its KV cache, and what a policy is told of its prompt. Plain data.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_SPEC_H_
#define HYDRANT_ENGINE_CACHE_CACHE_SPEC_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace hydrant {

inline constexpr int32_t kNoCap = std::numeric_limits<int32_t>::max();
inline constexpr int kDefaultMinCacheTokens = 128;
// Share of the prompt that an evicting policy keeps if the request names no budget (`auto` chooses
// its own share). docs/results/quality.md measures the loss at this share.
inline constexpr double kDefaultCacheRatio = 0.2;

// The cache fields of a request, as the client set them. Unset fields take the policy's defaults.
struct CacheSpec {
  std::string policy = "full";
  std::optional<int64_t> max_cache_tokens;
  std::optional<double> cache_ratio;
  std::optional<int64_t> min_cache_tokens;  // floor of the ratio, default 128
  std::optional<int64_t> sink_tokens;
  std::optional<int64_t> protected_window_size;
  std::map<std::string, std::string> params;  // a policy's own parameters by name
  // Of the attention of the prompt's last queries, the share that every head is to retain.
  std::optional<double> min_retained_mass;
  // Others may take room from the cache while it lives (Shrink): policies that can rank entries
  // while decoding do so, although no cap asks for it.
  bool may_shrink = false;

  // The request field that sets the budget, for error messages.
  const char* BudgetField() const {
    return cache_ratio || !max_cache_tokens ? "cache_ratio" : "max_cache_tokens";
  }
  bool operator==(const CacheSpec&) const = default;
};

// What a prompt is to its cache.
struct PromptShape {
  int64_t tokens = 0;
  int num_layers = 1;  // that the cache's budget is about: those without a window
  int num_kv_heads = 1;
  int64_t question_tokens = 0;  // that follow it: a question that it is to be compressed without
  bool asked_later = false;     // whatever it will be asked follows it, these tokens or others
  bool fits_twice = false;      // there is room to read it a second time

  bool AskedLater() const { return asked_later || question_tokens > 0; }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_SPEC_H_
