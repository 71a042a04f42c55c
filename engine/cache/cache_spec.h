// The KV cache settings of a request, and its prompt's properties for policies. Plain data.
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
// Share of the prompt that an evicting policy keeps by default (`auto` chooses its own).
// docs/results/quality.md measures the loss at this share.
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
  // Share of the attention of the prompt's last queries that every head must retain.
  std::optional<double> min_retained_mass;
  // The live cache may be shrunk in favour of other requests (Shrink): policies that can score
  // entries while decoding do so even without a cap.
  bool evictable = false;

  // The request field that sets the budget, for error messages.
  const char* BudgetField() const {
    return cache_ratio || !max_cache_tokens ? "cache_ratio" : "max_cache_tokens";
  }
  bool operator==(const CacheSpec&) const = default;
};

// With fewer heads than this beside layers without a budget, each head is needed, and none shares
// its budget by default (docs/decisions/one_budget_for_all_heads.md).
inline constexpr int kFewHeads = 8;

// The properties of a prompt that its plan depends on. EngineLimits::ShapeOf() fills in the model's.
struct PromptShape {
  int64_t tokens = 0;
  int num_layers = 1;  // layers with a budget: those without a window
  int num_kv_heads = 1;
  int64_t question_tokens = 0;   // of a question after the prompt, unknown to its compression
  bool question_later = false;   // the question comes after the prompt, in these tokens or others
  bool fits_two_passes = false;  // there is room for a second pass over the prompt
  bool predicts_scores = false;  // the model has a score predictor
  // The cache is kept: another turn may compress it even if the prompt is within its budget.
  bool goes_on = false;
  int num_fixed_layers = 0;  // layers without a budget: those with a window

  bool HasFewHeads() const { return num_fixed_layers > 0 && num_layers * num_kv_heads < kFewHeads; }
  bool HasLaterQuestion() const { return question_later || question_tokens > 0; }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_SPEC_H_
