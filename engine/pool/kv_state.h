// The memory of the KV pool and of the sequence tables, in device memory at fixed addresses. It
// follows the host's updates and decides nothing: which block belongs to whom is the scheduler's
// knowledge.
#ifndef HYDRANT_ENGINE_POOL_KV_STATE_H_
#define HYDRANT_ENGINE_POOL_KV_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_updates.h"
#include "engine/cache/engine_limits.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"
#include "kernels/kv_pages.h"

namespace hydrant {

class KvState {
 public:
  // Borrows the backend.
  static absl::StatusOr<std::unique_ptr<KvState>> Create(Backend* backend, const KvLayout& layout,
                                                         const EngineLimits& limits);

  // Setups, moved rows, new block ids and decided plans, in that order.
  void Apply(const CacheUpdates& updates);
  // Every head of the slot.
  void SetCaps(int slot, int32_t cap);

  const KvPages& pages() const { return pages_; }
  int32_t* blocks() const { return blocks_.data(); }
  const int32_t* lengths(int slot) const { return tables_.lengths + tables_.HeadIndex(slot, 0, 0); }
  const SequenceTables& tables() const { return tables_; }
  const CachePlan& plan(int slot) const { return plans_[slot]; }  // the slot's newest

 private:
  KvState(Backend* backend, const KvLayout& layout, const EngineLimits& limits);
  absl::Status Allocate();
  absl::Status AllocatePool();
  void SetUp(const SlotSetup& setup);
  void Decide(const SlotDecision& decision);
  void UpdateTable(std::span<const TableUpdate> updates);

  Backend* backend_;
  EngineLimits limits_;
  KvPages pages_;
  SequenceTables tables_;
  std::vector<CachePlan> plans_;  // [max_num_seqs], host

  DeviceArray<uint8_t> pool_;  // keys, values, positions, scores, log weights
  DeviceArray<int32_t> blocks_;
  DeviceArray<int64_t> row_begin_;
  DeviceArray<int32_t> row_width_;
  DeviceArray<int32_t> caps_, lengths_, victims_;
  DeviceArray<DecodeRule> rules_;
  DeviceArray<TableUpdate> updates_;   // room for a step's list
  std::vector<TableUpdate> distinct_;  // the list at work, host
  std::vector<uint64_t> list_of_;      // [table_entries]: the last list that named the entry, host
  uint64_t list_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_POOL_KV_STATE_H_
