// All checks of a request before it is queued: values in range, and whether it fits when it has the
// engine to itself. Pure and safe from any thread.
#ifndef HYDRANT_SCHEDULER_REQUEST_CHECK_H_
#define HYDRANT_SCHEDULER_REQUEST_CHECK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "engine/cache/prefix_key.h"
#include "engine/run/step/batch.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/request.h"

namespace hydrant {

inline constexpr int kMaxStopStrings = 64;
inline constexpr int kMaxStopStringBytes = 1024;
inline constexpr int kMaxStopTokenIds = 1024;
inline constexpr int kMaxCacheSaltBytes = 256;

// InvalidArgument if the salt is too long.
absl::Status CheckSalt(const std::string& salt);

// InvalidArgument names the value that is out of range.
absl::Status CheckSampling(const SamplingParams& sampling);

// The cache plan of a request's prompt.
struct PromptPlan {
  CacheSpec spec;
  CachePlan plan;  // of the prompt without its question; for an open plan, the least it may be
  std::vector<TokenId> probe = {};  // prefilled after the prompt to score its entries
};

// A valid request, with derived values.
struct CheckedRequest {
  Request request;
  CachePlan plan;  // of the prompt without its question; for an open plan, the least it may be
  std::vector<TokenId> probe;          // prefilled after the prompt to score its entries
  std::vector<PrefixKey> prefix_keys;  // of the plan's prompt; empty: the prefix cache is not used
  // Limit of prompt and output together: the least of prompt + max_tokens, max_model_len (which
  // does not bind a rolling cache with max_tokens: CachePlan::rule), and, without max_tokens, the
  // tokens that the pool holds under this cache plan (the stream then ends with reason `length`).
  int64_t max_total_tokens = 0;
  int32_t largest_cap = kNoCap;  // of the plan after the last turn has begun
  std::optional<int32_t>
      append_budget;  // C of the turn that continues a context (BudgetAfterAppend)
  // The plan used if the whole cache does not fit at admission; null: the request waits.
  std::shared_ptr<const PromptPlan> fallback_plan;

  // C, the entries kept of the prompt per KV head, averaged over heads that share a budget; nullopt
  // if nothing is ever evicted, or if C is decided later: at admission, or after the prefill.
  std::optional<int32_t> CacheTokens() const;
};

// Refuses with InvalidArgument, reason INVALID ("sampling.temperature: -1 is outside [0, 100]":
// field, value, range), or with ResourceExhausted, reason NEVER_FITS, if prompt plus max_tokens
// would outgrow an empty pool.
// `fallback_policy`: SchedulerOptions::policy_under_pressure. It applies to plain requests for the
// full cache: not to requests that continue a context, are kept, resumed or embedded, or have
// min_retained_mass; and only if it takes fewer pages and allows the same length.
std::variant<CheckedRequest, Failed> CheckRequest(Request request, const EngineLimits& limits,
                                                  const Tokenizer& tokenizer,
                                                  const CacheSpec& fallback_policy = {});

// Whether the policy can compress this engine's cache. InvalidArgument names the option.
absl::Status CheckPolicyUnderPressure(const CacheSpec& spec, const EngineLimits& limits);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_REQUEST_CHECK_H_
