// Everything that can be said about a request before it is queued: are its values in range, and
// could it run if it had the engine to itself? Pure and safe from any thread.
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

// InvalidArgument where a request's salt is too long.
absl::Status CheckSalt(const std::string& salt);

// InvalidArgument names the number that is out of its range.
absl::Status CheckSampling(const SamplingParams& sampling);

// What a request makes of its prompt's cache.
struct PlannedCache {
  CacheSpec spec;
  CachePlan plan;  // of the prompt without its question; one that is open is the least it may be
  std::vector<TokenId> probe = {};  // what is read after it to score its entries
};

// A request that was found good, and what follows from it.
struct CheckedRequest {
  Request request;
  CachePlan plan;  // of the prompt without its question; one that is open is the least it may be
  std::vector<TokenId> probe;  // what is read after it to score its entries
  std::vector<PrefixKey>
      prefix_keys;  // of the plan's prompt; empty: not to be looked for, nor kept
  // Prompt and output together never exceed this: the least of prompt + max_tokens, max_model_len
  // (which does not bind a rolling cache, where max_tokens is named: CachePlan::rule),
  // and, where the client named no max_tokens, what the pool holds of this cache plan (the stream
  // then ends with reason `length`).
  int64_t max_total_tokens = 0;
  int32_t largest_cap = kNoCap;        // that the plan will have, when the last turn has begun
  std::optional<int32_t> turn_budget;  // C of a turn that a context is gone on with (BudgetOfTurn)
  // What it becomes where its whole cache does not fit when its turn comes; null: it waits.
  std::shared_ptr<const PlannedCache> under_pressure;

  // C, the entries a KV head keeps of the prompt, on average over those that share a budget; unset
  // where nothing is ever evicted, and where it is decided only later: at admission, or when the
  // prompt has been read.
  std::optional<int32_t> CacheTokens() const;
};

// Refuses with InvalidArgument, reason INVALID ("sampling.temperature: -1 is outside [0, 100]":
// field, value, range), or with ResourceExhausted, reason NEVER_FITS, where prompt plus max_tokens
// would outgrow an empty pool.
// `under_pressure`: SchedulerOptions::policy_under_pressure. It is for who asked for the full cache
// and no more: not for what goes on from a context, becomes one, is resumed or embedded, nor where
// min_retained_mass is promised; and only where it takes fewer pages and the request may become as
// long.
std::variant<CheckedRequest, Failed> CheckRequest(Request request, const EngineLimits& limits,
                                                  const Tokenizer& tokenizer,
                                                  const CacheSpec& under_pressure = {});

// Whether the policy can compress what this engine holds. InvalidArgument names the option.
absl::Status CheckPolicyUnderPressure(const CacheSpec& spec, const EngineLimits& limits);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_REQUEST_CHECK_H_
