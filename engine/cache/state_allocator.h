// Allocates the state of a sequence's pages: slabs (engine/cache/state_slabs.h), and the states in
// them that its pages name. Slabs are pages of the pool and count as the sequence's. Borrows the
// page allocator; owned by KvCacheManager, and used by its thread.
#ifndef HYDRANT_ENGINE_CACHE_STATE_ALLOCATOR_H_
#define HYDRANT_ENGINE_CACHE_STATE_ALLOCATOR_H_

#include <cstdint>
#include <span>

#include "engine/cache/block_allocator.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/sequence_blocks.h"

namespace hydrant {

class StateAllocator {
 public:
  StateAllocator(const EngineLimits& limits, BlockAllocator* blocks)
      : slab_(limits.slab), budget_heads_(limits.BudgetHeads()), blocks_(blocks) {}

  int64_t NumSlabs() const { return num_slabs_; }
  // Sets the lines of state per page of the budget group's heads, by the plan.
  void SetLines(const CachePlan& plan, SequenceBlocks* blocks) const;
  // Whether pages of the head name a state.
  bool HasState(const SequenceBlocks& blocks, int head) const {
    return head < budget_heads_ && blocks.state_lines != kNoStateLines;
  }
  // pages: [heads]. The number of pages in heads that have state, if the plan keeps any.
  int64_t PagesWithState(std::span<const int32_t> pages) const;
  // The number of missing slabs for the state of `pages` more pages.
  static int64_t Missing(const SequenceBlocks& blocks, int64_t pages);
  // REQUIRES: as many pages are free
  void TakeSlabs(int64_t slabs, SequenceBlocks* blocks);
  // Allocates a state for a page of the head; kNoState if it needs none. REQUIRES: a state is free,
  // or the head needs none
  int32_t Take(int head, SequenceBlocks* blocks) const;
  // Frees the state of a page.
  static void Return(int32_t state, SequenceBlocks* blocks) {
    if (state != kNoState) blocks->free_states.push_back(state);
  }
  // Moves the states in the last slabs to free places in the first ones, and frees the emptied
  // slabs. REQUIRES: the sequence has a spare slab, and no unassigned pages
  void Pack(SequenceBlocks* blocks, CacheUpdates* updates);
  // Frees all slabs; the sequence still names them.
  void FreeSlabs(const SequenceBlocks& blocks);

 private:
  SlabShape slab_;
  int budget_heads_;
  BlockAllocator* blocks_;
  int64_t num_slabs_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_STATE_ALLOCATOR_H_
