// The engine's memory held by a sequence, live or swapped out: ids and counts. Plain data, filled
// by KvCacheManager and its parts. Arrays by head are in the order of ForEachGroup()
// (engine/cache/group_plans.h).
#ifndef HYDRANT_ENGINE_CACHE_SEQUENCE_BLOCKS_H_
#define HYDRANT_ENGINE_CACHE_SEQUENCE_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/growth_ring.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache/state_slabs.h"
#include "kernels/kv_pages.h"

namespace hydrant {

// The memory of one live sequence. Empty (slot < 0) while it waits.
struct SequenceBlocks {
  // Fields that each step and growth read come first, to share cache lines.
  int slot = -1;
  int32_t row_width = 0;  // width of a head's row in the block table
  int64_t row_begin = 0;  // in the table arena
  int64_t capacity = 0;   // tokens the sequence may see before a head needs another page
  int64_t num_pages = 0;  // slabs included
  // Empty: rebuilt by TryGrow(). Must be cleared when `spans` or `pages` change.
  GrowthRing growing;
  bool lengths_known = true;   // false until ApplyReport()
  std::vector<int32_t> pages;  // [heads] pages held
  // [row_width, heads]: one more page for every head is contiguous.
  std::vector<PageIds> page_ids;
  // State of the budget group's heads: lines per page, states per slab, the slabs, and the free
  // states in them.
  int state_lines = kNoStateLines;
  int32_t states_a_slab = 0;
  std::vector<int32_t> slabs, free_states;
  std::vector<HeadSpan> spans;  // [heads]
  int32_t row_limit = 0;        // maximum number of pages of a head
  int arena_begin = 0;          // prefill arena, in tokens
  int arena_tokens = 0;         // 0: no prompt is open
  // Pages behind its rows, until the engine reports their assignment to heads; empty: all pages are
  // assigned.
  std::vector<PageIds> unassigned_pages;
  // [heads] leading pages that may have other owners; empty: none.
  std::vector<int32_t> shared;
  int64_t compact_at = kAnyLength;   // tokens seen at the next compaction, AnnounceCompaction()
  int64_t reserved_tokens = 0;       // tokens that pages are reserved for; 0: none are reserved
  int64_t peak_pages = 0;            // the most pages it holds up to reserved_tokens
  int64_t reserved_pages = 0;        // reserved pages that it has not taken yet
  std::vector<PrefixKey> published;  // keys by which others find the first pages of its heads

  bool IsOpen() const { return slot >= 0; }
  // Pages without slabs.
  int64_t NumDataPages() const { return num_pages - static_cast<int64_t>(slabs.size()); }
  // Whether its state would fit into one slab less.
  bool HasSpareSlab() const {
    return !slabs.empty() && static_cast<int64_t>(free_states.size()) >= states_a_slab;
  }
  // The index of a head's page in `page_ids`, and in the table arena.
  int64_t BlockIndex(int head, int32_t page) const {
    return page * static_cast<int64_t>(pages.size()) + head;
  }
  int64_t TableIndex(int head, int32_t page) const {
    return row_begin + static_cast<int64_t>(head) * row_width + page;
  }
};

// An offloaded cache in host memory, from which a sequence can continue. Empty (index < 0) if there
// is none.
struct OffloadedCache {
  int index = -1;                   // SwapOut::index
  PrefixKey key = {};               // unique to these contents
  std::vector<HeadSpan> spans;      // [heads]
  std::vector<int32_t> pages;       // [heads]
  std::vector<int32_t> host_pages;  // of the first head, of the second, ...

  bool IsEmpty() const { return index < 0; }
};

// Arguments of KvCacheManager::TryOpen, TryFork and TrySwapIn.
struct OpenArgs {
  const CachePlan* plan = nullptr;
  int64_t prompt_tokens = 0;    // room in the prefill arena; 0: no prefill of its own
  int64_t tokens = 0;           // allocates pages up to this number of tokens seen
  int64_t final_tokens = 0;     // the most tokens that it will ever see
  int64_t pages_kept_free = 0;  // free pages that must be left
  // Keys of the prompt's first blocks that are not prefilled: it shares the pages that other
  // sequences have published under them, if its plan allows it.
  std::span<const PrefixKey> prefix = {};
  bool sharable = true;  // TrySwapIn: the offloaded cache stays, and others may share it
  // The plan with the highest cap that it will have: reserves all pages that it may need by this
  // plan until final_tokens. Null: reserves none.
  const CachePlan* reservation = nullptr;

  // A sequence that has seen `seen` tokens shares a page only if it does not overwrite it up to
  // this number of tokens seen.
  int64_t SharesUntil(int64_t seen) const {
    return reservation != nullptr ? std::max(final_tokens, seen + 1) : seen + 1;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_SEQUENCE_BLOCKS_H_
