// The changes that the host makes to the engine's caches in one step: new sequences in slots, pages
// and table rows, decided plans, cuts, and caches that are swapped out or in. Plain data.
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

// A new sequence takes a slot: its lengths become 0.
struct SlotSetup {
  int slot = 0;
  CachePlan plan;
  // Of its prompt, from the first on, the tokens whose entries lie in the pages of its heads
  // already, in the budget group: they are others', too, and are not written. Above 0 only where
  // heads keep the whole prompt. A multiple of the block size.
  int32_t shared_tokens = 0;
  // Ids behind its rows in the table that belong to no head yet (kernels/ops/assign_pages.h).
  int32_t unassigned_pages = 0;
};

// A slot that has been set up begins with the cache of another: lengths, caps and victims of its
// heads are copied. Its pages are those that its table names.
struct SlotFork {
  int slot = 0;
  int from = 0;
  // As SwapIn::prompt.
  std::span<const uint32_t> prompt = {};
};

// Pages of the pool that get the contents of others. A page is written once in a list. State alone
// is copied (PageIds::data is kNotCopied) where a sequence needs fewer slabs.
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

// Another turn begins (BudgetOfTurn): what the heads of a slot may hold, in the budget group, and
// what is protected from now on. The slot's plan changes in its cap alone: its rule is
// that of its first prompt, by which bounds are counted.
struct SlotTurn {
  int slot = 0;
  TurnBudget budget;
  std::vector<int32_t> caps = {};  // [heads of the budget group]
};

// A cache is cut as its plan's life says (Lifecycle::CutAfter). Pages past the entries that its
// heads keep are no longer the slot's, where the cut says how many these are (PageCut::then).
struct SlotCut {
  int slot = 0;
  int32_t tokens = 0;  // seen so far
  // The slot follows this plan from now on, whose life says the cut (Shrink); unset: its own does.
  std::optional<CachePlan> plan = {};
};

// A copy of a slot's cache goes to the host's memory, under a number in [0, max_kept_caches) by
// which the engine keeps the lengths of its heads. The host says which pages.
struct SwapOut {
  int slot = 0;
  int kept = 0;
  std::vector<PageCopy> pages = {};  // from the pool to the host's memory
  int state_lines = kNoStateLines;   // of each page
};

// A kept cache is copied into a slot that has been set up.
struct SwapIn {
  int slot = 0;
  int kept = 0;
  std::vector<PageCopy> pages = {};  // from the host's memory to the pool
  int state_lines = kNoStateLines;   // of each page
  // Tokens that penalties count as its prompt and, behind it, as its output; valid during
  // Enqueue().
  std::span<const uint32_t> prompt = {};
  std::span<const uint32_t> output = {};
};

// The next `count` of CacheUpdates::table.
struct TableWrites {
  size_t count = 0;
};

using CacheUpdate = std::variant<SlotDecision, SlotTurn, SlotSetup, SlotFork, SlotCopies, TableRow,
                                 TableWrites, SlotCut, SwapOut, SwapIn>;

// Carried out in the order of `list`, which is the order in which the host made the changes. So a
// page that one update frees may be written by any later one, and by none before.
struct CacheUpdates {
  std::vector<CacheUpdate> list;
  std::vector<TableUpdate> table;  // of all TableWrites, in their order

  template <typename Update>
  Update& Add(Update update) {
    return std::get<Update>(list.emplace_back(std::move(update)));
  }
  // Room for so many more table updates, to be filled in before anything else is added.
  TableUpdate* AddTableWrites(size_t count) {
    if (count > 0) {
      if (list.empty() || !std::holds_alternative<TableWrites>(list.back())) Add(TableWrites());
      std::get<TableWrites>(list.back()).count += count;
    }
    table.resize(table.size() + count);
    return table.data() + table.size() - count;
  }
  void AddTableWrite(const TableUpdate& update) { *AddTableWrites(1) = update; }

  // Calls for each update, in their order, the visitor that takes its type; one may be generic.
  template <typename... Visitors>
  void Visit(Visitors... visitors) const {
    struct Overloads : Visitors... {
      using Visitors::operator()...;
    };
    const Overloads visit{std::move(visitors)...};
    for (const CacheUpdate& update : list) std::visit(visit, update);
  }
  // visit(update) for all of one type, in their order.
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

// The slot of an update; -1: table writes, which may be several slots'.
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
