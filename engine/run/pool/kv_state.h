// The KV pool and the sequence tables in device memory at fixed addresses. It follows the host's
// updates and decides nothing: the scheduler owns the assignment of blocks.
#ifndef HYDRANT_ENGINE_RUN_POOL_KV_STATE_H_
#define HYDRANT_ENGINE_RUN_POOL_KV_STATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/offload_memory.h"
#include "engine/run/pool/group_state.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"
#include "kernels/kv_pages.h"
#include "kernels/ops/prefix_blocks.h"

namespace hydrant {

// The cache group of a layer of the model, and its index there.
struct GroupLayer {
  const GroupState& group;
  int layer = 0;  // within the group
};

// The shape of an engine's prefix blocks; without memory.
PrefixBlocks PrefixBlocksOf(const KvLayout& layout, const EngineLimits& limits);

class KvState {
 public:
  // Borrows the backend. kinds: [layers of the model] the group of each layer. kept_directory: a
  // folder for a file with the pages of offloaded caches; empty: the backend's host memory.
  static absl::StatusOr<std::unique_ptr<KvState>> Create(Backend* backend,
                                                         const std::vector<GroupKind>& kinds,
                                                         const KvLayout& layout,
                                                         const EngineLimits& limits,
                                                         const std::string& kept_directory = "");

  // Applies updates in the order of the list. Calls compact(SlotCompaction) and commit(SlotCommit)
  // with tables up to date.
  void Apply(const CacheUpdates& updates, const std::function<void(const SlotCompaction&)>& compact,
             const std::function<void(const SlotCommit&)>& commit);

  const KvPages& pages() const { return pages_; }
  // limits.num_prefix_blocks blocks in host memory.
  const PrefixBlocks& prefix() const { return prefix_; }
  const OffloadMemory& offload_memory() const { return offload_memory_; }
  PageIds* blocks() const { return blocks_.data(); }
  GroupLayer At(int layer) const { return {groups_[place_[layer].group], place_[layer].layer}; }
  // The group with the requests' plans; it has no layers if all are in other groups.
  const GroupState& budget() const { return groups_.front(); }
  // Tables and plan of the budget group.
  const SequenceTables& tables() const { return budget().tables(); }
  const CachePlan& plan(int slot) const { return budget().plan(slot); }
  // Replaces the slot's plan; its entries stay.
  void SetPlan(int slot, const CachePlan& plan) { groups_.front().SetPlan(slot, plan); }
  const TableRow& row(int slot) const { return rows_[slot]; }  // the slot's current one

 private:
  struct Place {
    int group = 0;
    int layer = 0;  // within the group
  };

  KvState(Backend* backend, const std::vector<GroupKind>& kinds, const KvLayout& layout,
          const EngineLimits& limits);
  absl::Status Allocate(const std::string& kept_directory);
  absl::Status AllocatePool();
  absl::Status AllocateOffloadMemory(const std::string& directory);
  absl::Status AllocatePrefix();
  void Apply(const SlotPlan& decision);
  void Apply(const SlotAppend& append) { groups_.front().RaiseCaps(append); }
  void Apply(const SlotSetup& setup);
  void Apply(const SlotFork& fork);
  void Apply(const SlotCopies& copies);
  void Apply(const TableRow& row);
  void Apply(const SwapOut& swap);
  void Apply(const SwapIn& swap);
  void WriteTable(std::span<const TableUpdate> writes);
  void WritePartOfTable(std::span<const TableUpdate> writes);
  void CopyPages(std::span<const PageCopy> copies, int state_lines, const KvPages& from,
                 const KvPages& to);

  Backend* backend_;
  EngineLimits limits_;
  KvPages pages_;
  OffloadMemory offload_memory_;
  PrefixBlocks prefix_;
  std::vector<GroupState> groups_;  // the budget group first
  std::vector<Place> place_;        // [layers of the model]

  DeviceArray<uint8_t> pool_;  // keys, values, positions
  DeviceBuffer prefix_memory_, offloaded_pages_, offloaded_heads_;
  DeviceArray<PageCopy> copies_;  // staging, for a part of a list
  DeviceArray<PageIds> blocks_;
  DeviceArray<int32_t> row_width_, unassigned_;
  std::vector<TableRow> rows_;         // [max_num_seqs] current rows of the slots, host
  DeviceArray<TableUpdate> updates_;   // staging, for a part of a list
  std::vector<TableUpdate> distinct_;  // the current list, host
  std::vector<uint64_t> list_of_;      // [table_entries]: the last list that named the entry, host
  uint64_t list_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_POOL_KV_STATE_H_
