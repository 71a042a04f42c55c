// Turns of a conversation: ranges of tokens that a cache reads behind its compressed prompt, and the
// number of entries that each head keeps after a range. Pure functions.
#ifndef HYDRANT_ENGINE_CACHE_TURNS_H_
#define HYDRANT_ENGINE_CACHE_TURNS_H_

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/head_budget.h"

namespace hydrant {

// Tokens [begin, end) of a sequence.
struct TokenRange {
  int32_t begin = 0;
  int32_t end = 0;
  auto operator<=>(const TokenRange&) const = default;
};

// Whether a range is a later turn. A range directly after the compressed prompt is its question: C
// does not count it, and nothing is evicted for it.
inline bool RaisesBudget(const TokenRange& range, const CachePlan& plan) {
  return range.begin != plan.prompt.tokens;
}

// The number of entries that each KV head of the budget group keeps after a turn has been
// prefilled, before heads share: as many as after the previous turn, plus the growth of C. Empty:
// all, as for a question. `plan`: of the cache; ranges: read before; spans: of its heads.
std::vector<int32_t> KeepAfterAppend(const TokenRange& turn, const CachePlan& plan,
                                     const CacheSpec& spec, std::span<const TokenRange> ranges,
                                     std::span<const HeadSpan> spans);

// The end of the tokens whose entries have a score, before a turn: of the last range, or of the
// prompt if it was scored; later ones were decoded.
int32_t ScoredEnd(const TokenRange& turn, const CachePlan& plan,
                  std::span<const TokenRange> ranges);

// The plan of a cache that began with `plan` and has read these ranges.
CachePlan PlanAfterAppends(CachePlan plan, const CacheSpec& spec,
                           const std::vector<TokenRange>& ranges);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_TURNS_H_
