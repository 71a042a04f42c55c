// How the heads of a cache share a budget of entries, and how many entries and pages follow from
// it. The rules by which a device shares are kernels/ops/share_budget.h's; what stands here bounds
// what they can give, so that pages can be reserved before the device has counted.
#ifndef HYDRANT_ENGINE_CACHE_HEAD_BUDGET_H_
#define HYDRANT_ENGINE_CACHE_HEAD_BUDGET_H_

#include <algorithm>
#include <cstdint>

#include "engine/cache/cache_spec.h"

namespace hydrant {

// The heads that share a budget. Within one a head gets more than another where more of the best
// entries are its own.
enum class BudgetScope : uint8_t {
  kHead,   // every head keeps as many as every other of its layer
  kLayer,  // the heads of a layer (Ada-KV)
  kModel,  // all heads of all layers
};

struct BudgetShare {
  BudgetScope scope = BudgetScope::kHead;
  int32_t floor_ppm = 200000;  // the part that all heads get alike, in millionths
  bool operator==(const BudgetShare&) const = default;
};

// The entries of one head from the end of the prompt on.
struct HeadSpan {
  int32_t dropped = 0;   // tokens of the prompt that are no entries
  int32_t cap = kNoCap;  // entries at most
  int32_t drop = 0;      // entries that leave at once before one comes to a head at its cap; 0: one

  // The most it has held when so many tokens of the sequence have been seen.
  int32_t MostUntil(int64_t tokens) const {
    const int64_t entries = tokens - dropped;
    return entries < cap ? static_cast<int32_t>(std::max<int64_t>(entries, 0)) : cap;
  }
  int32_t EntriesAfter(int64_t tokens) const {
    const int64_t entries = tokens - dropped;
    if (drop == 0 || entries <= cap) return MostUntil(tokens);
    return cap - drop + 1 + static_cast<int32_t>((entries - cap - 1) % drop);
  }
  // From so many tokens on it may hold so many entries more.
  HeadSpan Raised(int64_t tokens, int32_t entries) const {
    return {static_cast<int32_t>(tokens) - EntriesAfter(tokens), cap + entries, drop};
  }
  bool operator==(const HeadSpan&) const = default;
};

// Pages that `heads` heads need at most for `entries` entries together, however they lie.
constexpr int64_t PagesTogether(int64_t entries, int64_t heads, int64_t block_size) {
  return (entries + (block_size - 1) * heads) / block_size;
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_HEAD_BUDGET_H_
