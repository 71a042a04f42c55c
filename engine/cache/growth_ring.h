// The heads of a sequence that will need pages, in the order in which their pages fill up: a head
// that gets a page is full again block_size tokens later, after all others, and keeps its position.
// So a step costs O(1) per sequence, plus O(1) per head that crosses a page boundary.
#ifndef HYDRANT_ENGINE_CACHE_GROWTH_RING_H_
#define HYDRANT_ENGINE_CACHE_GROWTH_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cache/head_budget.h"

namespace hydrant {

// The data of a head that a step needs. The heads of one step are contiguous in memory; arrays by
// head would cost cache misses.
struct GrowingHead {
  int32_t head = 0;
  int32_t pages = 0;  // held
  HeadSpan span;

  // The number of tokens seen when its pages are full.
  int64_t FullAt(int block_size) const { return span.dropped + int64_t{pages} * block_size; }
  bool HasAllPages(int block_size) const { return int64_t{pages} * block_size >= span.cap; }
};

class GrowthRing {
 public:
  bool empty() const { return heads_.empty(); }
  size_t size() const { return heads_.size(); }
  void clear() { heads_.clear(); }
  // The i-th head to be full. REQUIRES: i < size()
  const GrowingHead& At(size_t i) const {
    const size_t at = next_ + i;
    return heads_[at < heads_.size() ? at : at - heads_.size()];
  }
  GrowingHead& Next() { return heads_[next_]; }
  void Advance() { next_ = next_ + 1 == heads_.size() ? 0 : next_ + 1; }

  // In any order, until Order().
  void Add(const GrowingHead& head) { heads_.push_back(head); }
  // Restarts at the head that was added first.
  void Rewind() { next_ = 0; }
  // Sorts the heads, without those that have all pages they will need. REQUIRES: all others have
  // room for the tokens seen, and for less than a page more
  void Order(int block_size);

  // Prefetches the next heads into the CPU cache: where heads differ, few grow in a step.
  void Prefetch() const;

 private:
  std::vector<GrowingHead> heads_;
  size_t next_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_GROWTH_RING_H_
