// The host's changes to the engine's caches in one step: new sequences in slots, pages and table
// rows, decided plans, compactions, and caches that are swapped out or in. Plain data.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_UPDATES_H_
#define HYDRANT_ENGINE_CACHE_CACHE_UPDATES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/state_slabs.h"
#include "kernels/ops/copy_pages.h"
#include "kernels/ops/table_update.h"

namespace hydrant {

// A new sequence takes a slot: all lengths become 0.
struct SlotSetup {
  int slot = 0;
  CachePlan plan;
  // Leading tokens of the prompt with entries in shared pages of the budget group: these are not
  // written again. Above 0 only if heads keep the whole prompt. A multiple of the block size.
  int32_t shared_tokens = 0;
  // Page ids behind its rows in the table, not assigned to a head yet (kernels/ops/assign_pages.h).
  int32_t unassigned_pages = 0;
};

// A slot that has been set up starts with the cache of another: lengths, caps and victims of its
// heads are copied. Its pages are named by its own table rows.
struct SlotFork {
  int slot = 0;
  int from = 0;
  // As SwapIn::prompt.
  std::span<const uint32_t> prompt = {};
};

// Copies pages within the pool. A list writes each page at most once. Only state is copied
// (PageIds::data is kNotCopied) for shared pages of a fork, and to pack slabs.
struct SlotCopies {
  int slot = 0;  // the owner of the copies
  std::vector<PageCopy> pages = {};
  int state_lines = kNoStateLines;  // of each page
};

// The place of a slot's block table in the table arena: the row of (layer, head) begins at
// row_begin + (layer * kv_heads + head) * row_width. Sent when a sequence starts, and when its rows
// move to a wider place (then all block ids are sent again). Unassigned pages follow the last row.
struct TableRow {
  int slot = 0;
  int64_t row_begin = 0;
  int32_t row_width = 0;
};

// The plan of a slot that was open has been decided. The prompt is the same.
struct SlotPlan {
  int slot = 0;
  CachePlan plan;
};

// Another turn begins (BudgetAfterAppend): new caps and protection of the slot's heads in the
// budget group. Of the slot's plan only the cap changes: its rule stays that of the first prompt,
// because bounds are computed from it.
struct SlotAppend {
  int slot = 0;
  AppendBudget budget;
  std::vector<int32_t> caps = {};  // [heads of the budget group]
};

// A cache is compacted by its plan's retention schedule (RetentionSchedule::CompactionAfter). If
// PageCompaction::then is set, pages past it are freed.
struct SlotCompaction {
  int slot = 0;
  int32_t tokens = 0;  // seen so far
  // The slot's new plan, with a retention schedule that makes this compaction (Shrink); unset: its
  // plan stays.
  std::optional<CachePlan> plan = {};
};

// Appends the first tokens of a run that was committed later (Commit::kLater,
// engine/run/step/batch.h), as a run with Commit::kAppend would: the pages hold room for them. The
// run has gone through all layers, and no other run of the slot since.
struct SlotCommit {
  int slot = 0;
  std::span<const uint32_t> tokens = {};  // the first of the run's; valid during Enqueue()
  int32_t first_position = 0;             // of the run
  int arena_begin = 0;                    // of the run, whose room in the arena is still its own
};

// Copies a slot's cache to host memory, with the lengths, caps and victims of its heads under the
// number `index` in [0, max_offloaded_caches).
struct SwapOut {
  int slot = 0;
  int index = 0;
  std::vector<PageCopy> pages = {};  // from the pool to host memory
  int state_lines = kNoStateLines;   // of each page
};

// Copies an offloaded cache into a slot that has been set up.
struct SwapIn {
  int slot = 0;
  int index = 0;
  std::vector<PageCopy> pages = {};  // from host memory to the pool
  int state_lines = kNoStateLines;   // of each page
  // Tokens that penalties count as prompt and as output; valid during Enqueue().
  std::span<const uint32_t> prompt = {};
  std::span<const uint32_t> output = {};
};

// The next `count` of CacheUpdates::table.
struct TableWrites {
  size_t count = 0;
};

using CacheUpdate = std::variant<SlotPlan, SlotAppend, SlotSetup, SlotFork, SlotCopies, TableRow,
                                 TableWrites, SlotCompaction, SlotCommit, SwapOut, SwapIn>;

// Applied in the order of `list`, the order in which the host made the changes. So a page that one
// update frees may be written by any later one, and by none before it.
struct CacheUpdates {
  std::vector<CacheUpdate> list;
  std::vector<TableUpdate> table;  // of all TableWrites, in list order

  template <typename Update>
  Update& Add(Update update) {
    return std::get<Update>(list.emplace_back(std::move(update)));
  }
  // Adds `count` table updates, to be filled in before anything else is added.
  TableUpdate* AddTableWrites(size_t count) {
    if (count > 0) {
      if (list.empty() || !std::holds_alternative<TableWrites>(list.back())) Add(TableWrites());
      std::get<TableWrites>(list.back()).count += count;
    }
    table.resize(table.size() + count);
    return table.data() + table.size() - count;
  }
  void AddTableWrite(const TableUpdate& update) { *AddTableWrites(1) = update; }

  // Calls the visitor for its type on each update, in list order; one visitor may be generic.
  template <typename... Visitors>
  void Visit(Visitors... visitors) const {
    struct Overloads : Visitors... {
      using Visitors::operator()...;
    };
    const Overloads visit{std::move(visitors)...};
    for (const CacheUpdate& update : list) std::visit(visit, update);
  }
  // Calls visit(update) for all updates of one type, in list order.
  template <typename Update, typename Visit>
  void ForEach(Visit visit) const {
    for (const CacheUpdate& update : list) {
      if (const Update* one = std::get_if<Update>(&update)) visit(*one);
    }
  }
  template <typename Update>
  std::vector<Update> All() const {
    std::vector<Update> all;
    ForEach<Update>([&](const Update& update) { all.push_back(update); });
    return all;
  }
  template <typename Update>
  size_t Count() const {
    size_t count = 0;
    ForEach<Update>([&](const Update&) { ++count; });
    return count;
  }

  void Clear() {
    list.clear();
    table.clear();
  }
};

// The slot of an update; -1 for table writes, which may be of several slots.
inline int SlotOf(const CacheUpdate& update) {
  return std::visit(
      []<typename Update>(const Update& one) {
        if constexpr (std::is_same_v<Update, TableWrites>) {
          return -1;
        } else {
          return one.slot;
        }
      },
      update);
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_UPDATES_H_
