// Contexts: caches kept when their requests ended, for other requests to continue. Evicted
// entries stay evicted; new tokens are added by the cache's own plan. KvCacheManager owns the
// memory (OffloadedCache).
#ifndef HYDRANT_SCHEDULER_CONTEXT_H_
#define HYDRANT_SCHEDULER_CONTEXT_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/turns.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/mutex.h"
#include "scheduler/request.h"

namespace hydrant {

// Handles of different salts are unrelated.
struct ContextId {
  std::string salt;
  std::string handle;
  auto operator<=>(const ContextId&) const = default;
};

// Immutable, and shared across threads. A holder can always continue it: if the cache has been
// evicted meanwhile, its tokens are prefilled again.
struct Context {
  ContextId id;
  std::vector<TokenId> tokens;  // all tokens of its sequence
  int64_t num_seen = 0;         // the number of leading tokens in the cache
  // Ranges after the compressed prompt that were prefilled, in order; the other tokens were decoded
  // one by one. Recomputation does the same.
  std::vector<TokenRange> append_ranges;
  CacheSpec spec;                               // as requested
  CachePlan first_plan;                         // after its first prompt was compressed
  CachePlan plan;                               // after all turns (PlanAfterAppends)
  int64_t entries = 0;                          // over all layers and heads
  int64_t pages = 0;                            // pages of the entries
  std::optional<RetainedMass> retained_mass{};  // of the compressed prompt
  int64_t created_at = 0;                       // Unix time in seconds
  int64_t expires_at = 0;                       // Unix time; 0: never
  bool pinned = false;                          // not evicted for others

  bool HasExpired(int64_t unix_now) const { return expires_at > 0 && unix_now >= expires_at; }
};

// The tokens of answer_end that the context lacks. If the context ends with the first n tokens of
// answer_end, the rest is missing. If it ends with none of them, all are missing when its last
// token was generated, and none when the context is a text.
std::span<const TokenId> MissingEnd(const Context& context, std::span<const TokenId> answer_end);

// The error for a handle without a context: unknown, expired, or of another salt.
Failed UnknownContext(const std::string& handle);

// All contexts. Thread-safe: requests are resolved before they reach the scheduler, and only the
// scheduler adds and removes contexts.
class ContextDirectory {
 public:
  void Add(std::shared_ptr<const Context> context);
  void Remove(const Context& context);  // only if it is the current one of its id

  // Sets Request::from to the named context, or to the longest one that the prompt continues if the
  // request asks for one, and puts the context's tokens in front of the prompt if needed. NOT_FOUND
  // UNKNOWN_CONTEXT, or INVALID if the prompt does not continue the context or the policy differs.
  std::optional<Failed> Resolve(Request* request, int64_t unix_now = 0) const;
  // Null: unknown or expired.
  std::shared_ptr<const Context> Find(const ContextId& id, int64_t unix_now) const;
  // All contexts of a salt, sorted by handle.
  std::vector<std::shared_ptr<const Context>> List(const std::string& salt, int64_t unix_now) const;
  // Number of contexts of all salts with this prefix.
  int64_t CountOfSalts(const std::string& prefix) const;
  std::vector<ContextId> Expired(int64_t unix_now) const;

 private:
  std::shared_ptr<const Context> FindLongest(const Request& request, int64_t unix_now) const;

  mutable Mutex mutex_;
  std::map<ContextId, std::shared_ptr<const Context>> contexts_ HYDRANT_GUARDED_BY(mutex_);
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_H_
