// What the host tells the engine of its caches in one step: who lives in which slot by which plan,
// which pages are whose, what has been decided, which caches are cut, and which leave for the
// host's memory or come back. Plain data.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_UPDATES_H_
#define HYDRANT_ENGINE_CACHE_CACHE_UPDATES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/state_slabs.h"
#include "kernels/ops/copy_pages.h"
#include "kernels/ops/table_update.h"

namespace hydrant {

// A new sequence takes a slot: its lengths become 0.
struct SlotSetup {
  int slot = 0;
  CachePlan plan;
  // Of its prompt, from the first on, the tokens whose entries lie in the pages of its heads
  // already, in the layers without a window: they are others', too, and are not written. Above 0
  // only where heads keep the whole prompt. A multiple of the block size.
  int32_t shared_tokens = 0;
  // Ids behind its rows in the table that belong to no head yet (kernels/ops/assign_pages.h).
  int32_t unassigned_pages = 0;
};

// A slot that has been set up begins with what another holds: lengths, caps and victims of its
// heads are the other's. Its pages are those that its table names.
struct SlotFork {
  int slot = 0;
  int from = 0;
  // As CacheSwap::prompt.
  std::span<const uint32_t> prompt = {};
};

// Pages of the pool that get the contents of others, which they have when the steps before have
// run. A page is written once in a list.
struct SlotCopies {
  int slot = 0;  // that the copies are for
  std::vector<PageCopy> pages = {};
  int state_lines = kNoStateLines;  // of each page
};

// Where a slot's block ids lie in the table arena: (layer, head) begins at row_begin + (layer *
// kv_heads + head) * row_width. Sent when a sequence starts, and when its rows move to a wider
// place (their block ids are then all sent again). Unassigned pages, if it has any, lie behind the
// last row.
struct TableRow {
  int slot = 0;
  int64_t row_begin = 0;
  int32_t row_width = 0;
};

// A slot's plan is no longer open: from now on it follows this one, which is of the same prompt.
struct SlotDecision {
  int slot = 0;
  CachePlan plan;
};

// Another turn begins (BudgetOfTurn): what the heads of a slot may hold, in the layers without a
// window, and what is protected from now on. The slot's plan changes in its cap alone: its rule is
// that of its first prompt, by which bounds are counted.
struct SlotTurn {
  int slot = 0;
  TurnBudget budget;
  std::vector<int32_t> caps = {};  // [full layers * KV heads]
};

// A cache is cut as its plan's life says (Lifecycle::CutAfter). Pages past what its
// heads then hold are no longer the slot's, where the cut says so (PageCut::then). Comes before
// anything else that the step does with pages.
struct SlotCut {
  int slot = 0;
  int32_t tokens = 0;  // seen so far
  // The slot follows this plan from now on, whose life says the cut (Shrink); unset: its own does.
  std::optional<CachePlan> plan = {};
};

// A cache leaves its slot for the host's memory, or comes back into one. A kept cache is named by a
// number in [0, max_kept_caches), under which what the engine knows of its heads stays; its pages
// are those that the host says.
struct CacheSwap {
  int slot = 0;
  int kept = 0;
  std::vector<PageCopy> pages = {};  // from the pool to the host's memory, or back
  int state_lines = kNoStateLines;   // of each page
  // Of one that comes back: what penalties count as its prompt and, behind it, as its output; valid
  // during Enqueue().
  std::span<const uint32_t> prompt = {};
  std::span<const uint32_t> output = {};
};

// Applied in the order of the members: first what concerns the caches that the steps before have
// left.
struct CacheUpdates {
  std::vector<SlotDecision> decisions;  // every slot at most once
  std::vector<SlotTurn> turns;          // the same
  std::vector<CacheSwap> swap_outs;
  std::vector<SlotCopies> moves;  // of state alone: within a slot, by which the slabs become fewer
  std::vector<SlotCopies> copies;
  std::vector<SlotSetup> setups;
  std::vector<SlotFork> forks;
  std::vector<TableRow> rows;
  std::vector<TableUpdate> updates;
  std::vector<CacheSwap> swap_ins;  // of slots that have been set up
  std::vector<SlotCut> cuts;        // every slot at most once
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_UPDATES_H_
