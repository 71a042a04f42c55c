// The heads of a sequence that will need pages, in the order in which theirs will be full: a head
// that gets a page is full again block_size tokens later, after all others, and keeps its place. So
// a step costs O(1) a sequence, and as much again for every head that crosses a page's border.
#ifndef HYDRANT_ENGINE_CACHE_GROWTH_RING_H_
#define HYDRANT_ENGINE_CACHE_GROWTH_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cache/head_budget.h"

namespace hydrant {

// All that a step asks about a head: those of one step lie side by side, where the arrays by head
// would be cache misses.
struct GrowingHead {
  int32_t head = 0;
  int32_t pages = 0;  // held
  HeadSpan span;

  // When its pages are full, in tokens seen.
  int64_t FullAt(int block_size) const { return span.dropped + int64_t{pages} * block_size; }
  bool HasAllPages(int block_size) const { return int64_t{pages} * block_size >= span.cap; }
};

class GrowthRing {
 public:
  bool empty() const { return heads_.empty(); }
  size_t size() const { return heads_.size(); }
  void clear() { heads_.clear(); }
  // The head that is the i-th to be full. REQUIRES: i < size()
  const GrowingHead& At(size_t i) const {
    const size_t at = next_ + i;
    return heads_[at < heads_.size() ? at : at - heads_.size()];
  }
  GrowingHead& Next() { return heads_[next_]; }
  void Advance() { next_ = next_ + 1 == heads_.size() ? 0 : next_ + 1; }

  // In any order, until Order().
  void Add(const GrowingHead& head) { heads_.push_back(head); }
  // Begins with the head that was added first.
  void Rewind() { next_ = 0; }
  // Leaves out heads that have all pages they will need. REQUIRES: all others have room for what
  // was seen, and for less than a page more
  void Order(int block_size);

  // Begins to fetch the heads that come next: where heads differ, few grow in a step.
  void Prefetch() const;

 private:
  std::vector<GrowingHead> heads_;
  size_t next_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_GROWTH_RING_H_
