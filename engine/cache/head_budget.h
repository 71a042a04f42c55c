// How the heads of a cache share a budget of entries, and how many entries and pages result. The
// device shares by the rules in kernels/ops/share_budget.h; this file bounds the results, so that
// pages can be reserved before the device has counted.
#ifndef HYDRANT_ENGINE_CACHE_HEAD_BUDGET_H_
#define HYDRANT_ENGINE_CACHE_HEAD_BUDGET_H_

#include <algorithm>
#include <cstdint>

#include "engine/cache/cache_spec.h"

namespace hydrant {

// The heads that share a budget. Within a scope, a head with more of the best entries keeps more.
enum class BudgetScope : uint8_t {
  kHead,   // none: all heads of a layer keep the same number
  kLayer,  // the heads of a layer (Ada-KV)
  kModel,  // all heads of all layers
};

struct BudgetShare {
  BudgetScope scope = BudgetScope::kHead;
  int32_t floor_ppm = 200000;  // the uniform part of all heads, in millionths
  bool operator==(const BudgetShare&) const = default;
};

// The number of entries of one head, from the end of the prompt on.
struct HeadSpan {
  int32_t dropped = 0;   // evicted tokens of the prompt
  int32_t cap = kNoCap;  // maximum entries
  int32_t drop = 0;      // entries evicted at once to append one at the cap; 0: one

  // The maximum up to `tokens` tokens of the sequence.
  int32_t PeakEntries(int64_t tokens) const {
    return static_cast<int32_t>(std::clamp<int64_t>(tokens - dropped, 0, cap));
  }
  int32_t EntriesAfter(int64_t tokens) const {
    const int64_t entries = tokens - dropped;
    if (drop == 0 || entries <= cap) return PeakEntries(tokens);
    return cap - drop + 1 + static_cast<int32_t>((entries - cap - 1) % drop);
  }
  // The span with `entries` more entries allowed, from `tokens` tokens on.
  HeadSpan Raised(int64_t tokens, int32_t entries) const {
    return {static_cast<int32_t>(tokens) - EntriesAfter(tokens), cap + entries, drop};
  }
  bool operator==(const HeadSpan&) const = default;
};

// Upper bound of the pages of `heads` heads with `entries` entries in all, in any distribution.
constexpr int64_t MaxPagesTogether(int64_t entries, int64_t heads, int64_t block_size) {
  return (entries + (block_size - 1) * heads) / block_size;
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_HEAD_BUDGET_H_
