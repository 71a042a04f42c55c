// The memory of the KV pool and of the sequence tables, in device memory at fixed addresses. It
// follows the host's updates and decides nothing: which block belongs to whom is the scheduler's
// knowledge.
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
#include "engine/cache/kept_memory.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"
#include "kernels/kv_pages.h"
#include "kernels/ops/prefix_blocks.h"

namespace hydrant {

// Where a layer of the model has its heads: layers with a window lie in tables of their own, so
// that what a policy does to "all layers" is done to those that take its budget.
struct LayerTables {
  const SequenceTables& tables;
  int layer = 0;  // of these
  bool windowed = false;
};

// Their shape in an engine; without memory.
PrefixBlocks PrefixBlocksOf(const KvLayout& layout, const EngineLimits& limits);

class KvState {
 public:
  // Borrows the backend. windowed: [layers of the model] whether it has a window. kept_directory: a
  // folder for the memory of caches that are kept; empty: the backend's host memory.
  static absl::StatusOr<std::unique_ptr<KvState>> Create(Backend* backend,
                                                         const std::vector<bool>& windowed,
                                                         const KvLayout& layout,
                                                         const EngineLimits& limits,
                                                         const std::string& kept_directory = "");

  // In the order of the list. cut(SlotCut): makes a cut, for which the tables are up to date.
  void Apply(const CacheUpdates& updates, const std::function<void(const SlotCut&)>& cut);

  const KvPages& pages() const { return pages_; }
  // With the state that a slot has, or one whose pages need so many lines.
  KvPages PagesOf(int slot) const { return WithState(pages_, plans_[slot].state_lines); }
  static KvPages WithState(KvPages pages, int lines);
  // limits.num_prefix_blocks of them, in the host's memory.
  const PrefixBlocks& prefix() const { return prefix_; }
  const KeptMemory& kept() const { return kept_; }
  PageIds* blocks() const { return blocks_.data(); }
  // [full layers * KV heads]
  const int32_t* lengths(int slot) const {
    return tables().lengths + tables().HeadIndex(slot, 0, 0);
  }
  // Of the layers without a window.
  const SequenceTables& tables() const { return full_.tables; }
  LayerTables TablesOf(int layer) const {
    const bool windowed = place_[layer].windowed;
    return {windowed ? windowed_.tables : full_.tables, place_[layer].layer, windowed};
  }
  // The slot's newest plan from now on, of what it holds.
  void SetPlan(int slot, const CachePlan& plan);
  const CachePlan& plan(int slot) const { return plans_[slot]; }          // the slot's newest
  int32_t shared_tokens(int slot) const { return shared_tokens_[slot]; }  // SlotSetup
  const TableRow& row(int slot) const { return rows_[slot]; }             // the slot's newest

 private:
  // The tables of some of the model's layers, with the memory behind them.
  struct Group {
    SequenceTables tables;
    DeviceArray<int64_t> row_begin;
    DeviceArray<int32_t> caps, lengths, victims;
    DeviceArray<DecodeRule> rules;

    size_t NumHeads() const { return static_cast<size_t>(tables.num_layers) * tables.num_kv_heads; }
    absl::Status Allocate(Backend& backend, const EngineLimits& limits);
    // Between the tables and what is kept of the heads, of which these are the ones from
    // `first_head` on.
    void SwapOut(Backend& backend, int slot, const KeptHeads& kept, size_t first_head) const;
    void SwapIn(Backend& backend, int slot, const KeptHeads& kept, size_t first_head) const;
    void Fork(Backend& backend, int slot, int from) const;
    // An empty sequence; caps: [NumHeads()].
    void SetUp(Backend& backend, int slot, const DecodeRule& rule,
               std::span<const int32_t> caps) const;
  };
  struct Place {
    bool windowed = false;
    int layer = 0;  // of those that are as it is
  };

  KvState(Backend* backend, const std::vector<bool>& windowed, const KvLayout& layout,
          const EngineLimits& limits);
  absl::Status Allocate(const std::string& kept_directory);
  absl::Status AllocatePool();
  absl::Status AllocateKept(const std::string& directory);
  absl::Status AllocatePrefix();
  void Apply(const SlotDecision& decision);
  void Apply(const SlotTurn& turn);
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
  KeptMemory kept_;
  PrefixBlocks prefix_;
  Group full_, windowed_;
  std::vector<Place> place_;            // [layers of the model]
  std::vector<CachePlan> plans_;        // [max_num_seqs], host
  std::vector<int32_t> shared_tokens_;  // the same

  DeviceArray<uint8_t> pool_;  // keys, values, positions
  DeviceBuffer prefix_memory_, kept_pages_, kept_heads_;
  DeviceArray<PageCopy> copies_;  // room for a part of a list
  DeviceArray<PageIds> blocks_;
  DeviceArray<int32_t> row_width_, unassigned_;
  std::vector<TableRow> rows_;         // [max_num_seqs] the slots' newest, host
  DeviceArray<TableUpdate> updates_;   // room for a step's list
  std::vector<TableUpdate> distinct_;  // the list at work, host
  std::vector<uint64_t> list_of_;      // [table_entries]: the last list that named the entry, host
  uint64_t list_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_POOL_KV_STATE_H_
