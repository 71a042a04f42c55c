// Contexts: caches that were kept when their requests ended, so that others can go on from them.
// What has left a cache stays evicted; what a later request reads is added to it by the cache's own
// plan. The memory behind them is CacheSpace's (KeptSpace).
#ifndef HYDRANT_SCHEDULER_CONTEXT_H_
#define HYDRANT_SCHEDULER_CONTEXT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/request.h"

namespace hydrant {

// Immutable, and shared across threads: who has one may go on from it, by reading its tokens again
// where the cache itself has left meanwhile.
struct Context {
  std::string handle;
  std::vector<TokenId> tokens;  // all that its sequence knew
  int64_t num_seen = 0;         // of these, from the first on, those that the cache has seen
  CacheSpec spec;               // what its request asked for
  CachePlan plan;               // what became of it
  std::string salt;
};

// Which there are, by handle. Thread-safe: requests are resolved before they reach the scheduler,
// which alone adds and removes.
class ContextDirectory {
 public:
  void Add(std::shared_ptr<const Context> context);
  void Remove(const std::string& handle);

  // Puts the context that a request names, or the longest that it continues where it asks for one,
  // in front of it (Request::from). NOT_FOUND UNKNOWN_CONTEXT, or INVALID where its prompt is not
  // a continuation or its salt another.
  std::optional<Failed> Resolve(Request* request) const;

 private:
  std::shared_ptr<const Context> Find(const std::string& handle) const;
  std::shared_ptr<const Context> FindLongest(const Request& request) const;

  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Context>> contexts_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_H_
