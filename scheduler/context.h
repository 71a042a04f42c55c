// Contexts: caches that were kept when their requests ended, so that others can go on from them.
// What has left a cache stays evicted; what a later request reads is added to it by the cache's own
// plan. The memory behind them is CacheSpace's (KeptSpace).
#ifndef HYDRANT_SCHEDULER_CONTEXT_H_
#define HYDRANT_SCHEDULER_CONTEXT_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/engine_limits.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/request.h"

namespace hydrant {

// Tokens [begin, end) of a sequence.
struct TokenRange {
  int32_t begin = 0;
  int32_t end = 0;
  auto operator<=>(const TokenRange&) const = default;
};

// Handles of one salt mean nothing to those of another.
struct ContextId {
  std::string salt;
  std::string handle;
  auto operator<=>(const ContextId&) const = default;
};

// Immutable, and shared across threads: who has one may go on from it, by reading its tokens again
// where the cache itself has left meanwhile.
struct Context {
  ContextId id;
  std::vector<TokenId> tokens;  // all that its sequence knew
  int64_t num_seen = 0;         // of these, from the first on, those that the cache has seen
  // What followed the compressed prompt and was read at once, in order; the rest was decoded, token
  // by token. Who reads the tokens again does the same.
  std::vector<TokenRange> read_later;
  CacheSpec spec;                               // what its request asked for
  CachePlan first_plan;                         // what became of it when its prompt had been read
  CachePlan plan;                               // the same, after all turns (PlanAfterTurns)
  int64_t entries = 0;                          // over all layers and heads
  int64_t pages = 0;                            // that they lie in
  std::optional<RetainedMass> retained_mass{};  // of the prompt that was compressed
  int64_t created_at = 0;                       // Unix time in seconds
  int64_t expires_at = 0;                       // the same; 0: never
  bool pinned = false;                          // does not leave for others

  bool HasExpired(int64_t unix_now) const { return expires_at > 0 && unix_now >= expires_at; }
};

// Of what ends an answer, the tokens that a context lacks: those behind as many as it ends in. One
// that ends in none of them lacks all where its last token was generated, and else, being a text,
// nothing.
std::span<const TokenId> MissingEnd(const Context& context, std::span<const TokenId> answer_end);

// Whether a range is another turn. One that follows the compressed prompt at once is its question:
// C does not count it, and nothing leaves for it.
inline bool IsTurn(const TokenRange& range, const CachePlan& plan) {
  return range.begin != plan.prompt.tokens;
}

// What the heads of the budget group keep when a turn has been read, of what they then hold: as
// many as after the turn before, and what C has grown by; empty: all. `plan`: of the cache; ranges:
// those it has read before; spans: of its heads.
std::vector<int32_t> KeptAfterTurn(const TokenRange& turn, const CachePlan& plan,
                                   const CacheSpec& spec, std::span<const TokenRange> ranges,
                                   std::span<const HeadSpan> spans);

// Of a cache that began with `plan` and has read these ranges.
CachePlan PlanAfterTurns(CachePlan plan, const CacheSpec& spec,
                         const std::vector<TokenRange>& ranges);

// What is said of a handle that nothing is behind: of an unknown one, an expired one, or another's.
Failed UnknownContext(const std::string& handle);

// Which there are. Thread-safe: requests are resolved before they reach the scheduler, which alone
// adds and removes.
class ContextDirectory {
 public:
  void Add(std::shared_ptr<const Context> context);
  void Remove(const Context& context);  // where it is the one of its id

  // Puts the context that a request names, or the longest that it continues where it asks for one,
  // in front of it (Request::from). NOT_FOUND UNKNOWN_CONTEXT, or INVALID where its prompt is not
  // a continuation or its salt another.
  std::optional<Failed> Resolve(Request* request, int64_t unix_now = 0) const;
  // Null: there is none, or it has expired.
  std::shared_ptr<const Context> Find(const ContextId& id, int64_t unix_now) const;
  // Of a salt, by handle.
  std::vector<std::shared_ptr<const Context>> List(const std::string& salt, int64_t unix_now) const;
  // How many there are of salts that begin so.
  int64_t CountOfSalts(const std::string& prefix) const;
  std::vector<ContextId> Expired(int64_t unix_now) const;

 private:
  std::shared_ptr<const Context> FindLongest(const Request& request, int64_t unix_now) const;

  mutable std::mutex mutex_;
  std::map<ContextId, std::shared_ptr<const Context>> contexts_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_H_
