// What sequences hold of the engine's memory, live or swapped out: ids and counts. Plain data,
// which CacheSpace and its parts fill. Arrays by head are in the order of ForEachGroup()
// (engine/cache/group_plans.h).
#ifndef HYDRANT_ENGINE_CACHE_SEQUENCE_SPACE_H_
#define HYDRANT_ENGINE_CACHE_SEQUENCE_SPACE_H_

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

// What one live sequence holds. Empty (slot < 0) while it waits.
struct SequenceSpace {
  // What a step asks first, and what growing does: they lie side by side.
  int slot = -1;
  int32_t row_width = 0;  // block ids reserved a head
  int64_t row_begin = 0;  // table arena
  int64_t capacity = 0;   // tokens the sequence may see before a head needs another page
  int64_t num_pages = 0;  // slabs included
  // Empty: TryGrow makes it anew, as it must once `spans` or `pages` have changed.
  GrowthRing growing;
  bool lengths_known = true;   // false: SetKept() is to come
  std::vector<int32_t> pages;  // [heads] pages held
  // [row_width, heads]: a page more for every head is one run of memory.
  std::vector<PageIds> blocks;
  // Of the heads that a plan is about: what each of their pages needs, the slabs that have it, and
  // the ids in them that no page names.
  int state_lines = kNoStateLines;
  int32_t states_a_slab = 0;
  std::vector<int32_t> slabs, free_states;
  std::vector<HeadSpan> spans;  // [heads]
  int32_t row_limit = 0;        // block ids a head can ever need
  int arena_begin = 0;          // prefill arena, in tokens
  int arena_tokens = 0;         // 0: no prompt is open
  // Ids behind its rows, until it is reported which head the engine has given which; empty: all are
  // their heads' own.
  std::vector<PageIds> unassigned_pages;
  // [heads] of its pages, the first ones, that may have other owners; empty: none have.
  std::vector<int32_t> shared;
  int64_t cut_at = kAnyLength;       // WillBeCut()
  int64_t promised_tokens = 0;       // that it may see; 0: nothing is promised
  int64_t most_pages = 0;            // that it holds at most until then
  int64_t promised_pages = 0;        // of these, those that it has yet to take
  std::vector<PrefixKey> published;  // under which others find the first pages of its heads

  bool IsOpen() const { return slot >= 0; }
  // Without slabs.
  int64_t NumDataPages() const { return num_pages - static_cast<int64_t>(slabs.size()); }
  // Whether a slab is more than the pages need.
  bool HasSpareSlab() const {
    return !slabs.empty() && static_cast<int64_t>(free_states.size()) >= states_a_slab;
  }
  // Where the id of a head's page lies: here, and in the table arena.
  int64_t BlockIndex(int head, int32_t page) const {
    return page * static_cast<int64_t>(pages.size()) + head;
  }
  int64_t TableIndex(int head, int32_t page) const {
    return row_begin + static_cast<int64_t>(head) * row_width + page;
  }
};

// A cache in the host's memory: what its sequence held, and may go on from. Empty (kept < 0) where
// there is none.
struct KeptSpace {
  int kept = -1;                    // CacheSwap::kept
  PrefixKey key = {};               // of these contents: no other cache has had it
  std::vector<HeadSpan> spans;      // [heads]
  std::vector<int32_t> pages;       // [heads]
  std::vector<int32_t> host_pages;  // of the first head, of the second, ...

  bool IsEmpty() const { return kept < 0; }
};

// What a sequence is opened with, by CacheSpace::TryOpen, TryFork and TrySwapIn.
struct OpenArgs {
  const CachePlan* plan = nullptr;
  int64_t prompt_tokens = 0;  // room in the prefill arena; 0: another reads it
  int64_t tokens = 0;         // pages for what is held until then, all at once
  int64_t final_tokens = 0;   // what it may see in its whole life
  int64_t pages_kept_free = 0;
  // Of the prompt's first blocks that are not read: it shares the pages of those that others have
  // published, where its plan may.
  std::span<const PrefixKey> prefix = {};
  bool others_may_follow = true;  // TrySwapIn: the kept cache stays, and others may share it
  // The plan with the highest cap that it will have: all that it may come to hold by it until
  // final_tokens is promised to it, and needs room now; null: nothing is.
  const CachePlan* promised = nullptr;

  // A page that others own, too, is not to be overwritten while no more tokens have been seen.
  int64_t SharesUntil(int64_t seen) const {
    return promised != nullptr ? std::max(final_tokens, seen + 1) : seen + 1;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_SEQUENCE_SPACE_H_
