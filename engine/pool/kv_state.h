// The memory of the KV pool and of the sequence tables, in device memory at fixed addresses. It
// follows what a Batch says and decides nothing: which block belongs to whom is the scheduler's
// knowledge.
#ifndef HYDRANT_ENGINE_POOL_KV_STATE_H_
#define HYDRANT_ENGINE_POOL_KV_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/compress/page_budget.h"
#include "engine/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"
#include "kernels/kv_pages.h"

namespace hydrant {

class KvState {
 public:
  // Borrows the backend.
  static absl::StatusOr<std::unique_ptr<KvState>> Create(Backend* backend, const KvLayout& layout,
                                                         const EngineLimits& limits);

  // Setups, moved rows, new block ids, decided plans and shrinking caches, in that order.
  void Apply(const Batch& batch);

  const KvPages& pages() const { return pages_; }
  int32_t* blocks() const { return blocks_.data(); }
  const int32_t* lengths(int slot) const { return tables_.lengths + tables_.HeadIndex(slot, 0, 0); }
  const SequenceTables& tables() const { return tables_; }
  const SubGenRule* subgens() const { return subgens_.data(); }   // [max_num_seqs]
  const CachePlan& plan(int slot) const { return plans_[slot]; }  // the slot's newest

 private:
  KvState(Backend* backend, const KvLayout& layout, const EngineLimits& limits);
  absl::Status Allocate();
  absl::Status AllocatePool();
  void SetUp(const SlotSetup& setup);
  void Retune(const SlotRetune& retune);
  void Shrink(const SlotShrink& shrink);
  void BuildSubGen(const SlotShrink& shrink);
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
  DeviceArray<SubGenRule> subgens_;
  PageBudget budget_;
  DeviceArray<TableUpdate> updates_;   // room for a step's list
  std::vector<TableUpdate> distinct_;  // the list at work, host
  std::vector<uint64_t> list_of_;      // [table_entries]: the last list that named the entry, host
  uint64_t list_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_POOL_KV_STATE_H_
