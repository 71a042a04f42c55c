// The tables of a cache group (engine/cache/cache_group.h) with the memory behind them, and the
// plans of its heads by slot. It follows the host's updates and decides nothing. Owned by KvState.
#ifndef HYDRANT_ENGINE_RUN_POOL_GROUP_STATE_H_
#define HYDRANT_ENGINE_RUN_POOL_GROUP_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_group.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/offload_memory.h"
#include "engine/cache/state_slabs.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"
#include "kernels/kv_pages.h"

namespace hydrant {

// `pages` without the state arrays that slots with `state_lines` lines per page lack.
KvPages WithState(KvPages pages, int state_lines);

class GroupState {
 public:
  explicit GroupState(const CacheGroup& group) : group_(group) {}

  // shared: the tables common to all groups: blocks, row_width and unassigned. Borrows the backend.
  absl::Status Allocate(Backend* backend, const EngineLimits& limits, const KvPages& pages,
                        const SequenceTables& shared);

  const CacheGroup& group() const { return group_; }
  bool IsBudget() const { return group_.kind == GroupKind::kBudget; }
  const SequenceTables& tables() const { return tables_; }
  // The current plan of a slot.
  const CachePlan& plan(int slot) const { return plans_[slot]; }
  // The pool, with the state arrays that a slot has in this group.
  KvPages PagesOf(int slot) const { return WithState(pages_, plans_[slot].state_lines); }
  // SlotSetup::shared_tokens
  int32_t shared_tokens(int slot) const { return shared_tokens_[slot]; }
  // [layers * KV heads]
  const int32_t* lengths(int slot) const { return tables_.lengths + tables_.HeadIndex(slot, 0, 0); }

  void SetUp(const SlotSetup& setup);
  void SetPlan(int slot, const CachePlan& plan);
  void RaiseCaps(const SlotAppend& append);
  void Fork(const SlotFork& fork);
  // Sets the start of the slot's rows in the table; returns their end.
  int64_t SetRows(int slot, int64_t begin, int32_t row_width);
  // Copies between the tables and an offloaded cache's heads; the group's begin at `first_head` of
  // all.
  void SwapOut(int slot, const OffloadedHeads& offloaded, size_t first_head) const;
  void SwapIn(int slot, const OffloadedHeads& offloaded, size_t first_head) const;

 private:
  size_t NumHeads() const { return group_.NumHeads(); }

  const CacheGroup group_;
  Backend* backend_ = nullptr;
  KvPages pages_;
  SequenceTables tables_;
  DeviceArray<int64_t> row_begin_;
  DeviceArray<int32_t> caps_, lengths_, victims_;
  DeviceArray<DecodeRule> rules_;
  std::vector<CachePlan> plans_;        // [max_num_seqs], host
  std::vector<int32_t> shared_tokens_;  // [max_num_seqs], host
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_POOL_GROUP_STATE_H_
