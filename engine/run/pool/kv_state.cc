#include "engine/run/pool/kv_state.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/cache/prompt_scorer.h"
#include "engine/cache/state_slabs.h"
#include "kernels/entry_state.h"
#include "kernels/host_memory.h"
#include "kernels/status_macros.h"

namespace hydrant {

namespace {

// The layout of pages in one allocation, so that it is rounded up to the device's granularity only
// once. State lies in arrays of its own, or in slabs.
class PageArrays {
 public:
  PageArrays(const KvLayout& layout, int num_blocks, bool state_beside)
      : layout_(layout), state_beside_(state_beside) {
    layout_.num_blocks = num_blocks;
    const size_t slots = static_cast<size_t>(num_blocks) * layout.block_size;
    const SlabShape slabs = SlabShape::Of(layout_);
    keys_ = Place(num_blocks * slabs.keys_bytes);
    size_ = slabs.values_line * slabs.line_bytes;
    values_ = Place(num_blocks * slabs.keys_bytes);
    positions_ = Place(slots * sizeof(int32_t));
    if (!state_beside) return;
    scores_ = Place(slots * sizeof(float));
    pairs_ = Place(2 * slots * sizeof(float));
  }

  size_t size() const { return size_; }
  KvPages In(uint8_t* memory) const {
    KvPages pages = {.layout = layout_,
                     .keys = memory + keys_,
                     .values = memory + values_,
                     .positions = reinterpret_cast<int32_t*>(memory + positions_)};
    if (state_beside_) {
      PlaceStateBeside(reinterpret_cast<float*>(memory + scores_),
                       reinterpret_cast<float*>(memory + pairs_), &pages);
    } else {
      PlaceStateInSlabs(&pages);
    }
    return pages;
  }

 private:
  // Aligns each array to the widest access of a kernel.
  size_t Place(size_t bytes) {
    const size_t offset = size_;
    size_ += (bytes + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
    return offset;
  }

  KvLayout layout_;
  bool state_beside_;
  size_t size_ = 0;
  size_t keys_ = 0, values_ = 0, positions_ = 0, scores_ = 0, pairs_ = 0;
};

}  // namespace

PrefixBlocks PrefixBlocksOf(const KvLayout& layout, const EngineLimits& limits) {
  return {.dtype = layout.dtype,
          .num_layers = limits.num_layers,
          .num_kv_heads = limits.num_kv_heads,
          .head_dim = layout.head_dim};
}

KvState::KvState(Backend* backend, const std::vector<GroupKind>& kinds, const KvLayout& layout,
                 const EngineLimits& limits)
    : backend_(backend),
      limits_(limits),
      rows_(limits.max_num_seqs),
      list_of_(limits.table_entries, 0) {
  pages_.layout = layout;
  prefix_ = PrefixBlocksOf(layout, limits);
  if (limits.BudgetLayers() == 0)
    groups_.emplace_back(CacheGroup{.num_kv_heads = limits.num_kv_heads});
  for (const CacheGroup& group : limits.Groups()) groups_.emplace_back(group);
  std::vector<int> placed(groups_.size(), 0);
  for (const GroupKind kind : kinds) {
    int group = 0;
    while (groups_[group].group().kind != kind) ++group;
    place_.push_back({group, placed[group]++});
  }
}

absl::StatusOr<std::unique_ptr<KvState>> KvState::Create(Backend* backend,
                                                         const std::vector<GroupKind>& kinds,
                                                         const KvLayout& layout,
                                                         const EngineLimits& limits,
                                                         const std::string& kept_directory) {
  std::unique_ptr<KvState> state(new KvState(backend, kinds, layout, limits));
  HYDRANT_RETURN_IF_ERROR(state->Allocate(kept_directory));
  return state;
}

absl::Status KvState::Allocate(const std::string& kept_directory) {
  const size_t seqs = limits_.max_num_seqs;
  const size_t heads = seqs * limits_.num_layers * limits_.num_kv_heads;
  HYDRANT_RETURN_IF_ERROR(AllocatePool());
  HYDRANT_RETURN_IF_ERROR(AllocateOffloadMemory(kept_directory));
  HYDRANT_RETURN_IF_ERROR(AllocatePrefix());
  HYDRANT_RETURN_IF_ERROR(blocks_.Allocate(*backend_, limits_.table_entries));
  HYDRANT_RETURN_IF_ERROR(row_width_.Allocate(*backend_, seqs));
  HYDRANT_RETURN_IF_ERROR(unassigned_.Allocate(*backend_, seqs));
  const SequenceTables shared = {
      .blocks = blocks_.data(), .row_width = row_width_.data(), .unassigned = unassigned_.data()};
  for (GroupState& group : groups_)
    HYDRANT_RETURN_IF_ERROR(group.Allocate(backend_, limits_, pages_, shared));
  HYDRANT_RETURN_IF_ERROR(copies_.Allocate(*backend_, 4096));
  return updates_.Allocate(*backend_, std::max<size_t>(heads, 1024));
}

absl::Status KvState::AllocatePool() {
  const PageArrays arrays(pages_.layout, pages_.layout.num_blocks, false);
  HYDRANT_RETURN_IF_ERROR(pool_.Allocate(*backend_, arrays.size()));
  pages_ = arrays.In(pool_.data());
  return absl::OkStatus();
}

absl::Status KvState::AllocateOffloadMemory(const std::string& directory) {
  const PageArrays arrays(pages_.layout, limits_.num_host_pages, true);
  HYDRANT_ASSIGN_OR_RETURN(offloaded_pages_, directory.empty()
                                                 ? backend_->AllocateHost(arrays.size())
                                                 : AllocateFileMemory(arrays.size(), directory));
  offload_memory_.pages = arrays.In(static_cast<uint8_t*>(offloaded_pages_.get()));
  offload_memory_.num_heads = static_cast<size_t>(limits_.num_layers) * limits_.num_kv_heads;
  const size_t heads = 3 * limits_.max_offloaded_caches * offload_memory_.num_heads;
  HYDRANT_ASSIGN_OR_RETURN(offloaded_heads_, backend_->AllocateHost(heads * sizeof(int32_t)));
  offload_memory_.heads = static_cast<int32_t*>(offloaded_heads_.get());
  return absl::OkStatus();
}

absl::Status KvState::AllocatePrefix() {
  const size_t bytes = limits_.num_prefix_blocks * prefix_.BlockBytes();
  HYDRANT_ASSIGN_OR_RETURN(prefix_memory_, backend_->AllocateHost(bytes));
  prefix_.memory = prefix_memory_.get();
  return absl::OkStatus();
}

void KvState::Apply(const CacheUpdates& updates,
                    const std::function<void(const SlotCompaction&)>& compact,
                    const std::function<void(const SlotCommit&)>& commit) {
  // Only compactions, commits and decisions read the table: writes are batched until the next one,
  // or the end.
  std::span<const TableUpdate> left = updates.table;
  size_t waiting = 0;
  const auto write_table = [&] {
    WriteTable(left.first(waiting));
    left = left.subspan(std::exchange(waiting, 0));
  };
  updates.Visit([&](const TableWrites& writes) { waiting += writes.count; },
                [&](const SlotCompaction& of_slot) {
                  write_table();
                  compact(of_slot);
                },
                [&](const SlotCommit& of_slot) {
                  write_table();
                  commit(of_slot);
                },
                [&](const SlotPlan& decision) {
                  write_table();
                  Apply(decision);
                },
                [&](const auto& update) { Apply(update); });
  write_table();
}

void KvState::CopyPages(std::span<const PageCopy> copies, int state_lines, const KvPages& from,
                        const KvPages& to) {
  for (size_t begin = 0; begin < copies.size(); begin += copies_.size()) {
    const size_t count = std::min(copies_.size(), copies.size() - begin);
    copies_.Write(*backend_, 0, copies.subspan(begin, count));
    backend_->CopyPages({.copies = copies_.data(),
                         .count = static_cast<int>(count),
                         .from = WithState(from, state_lines),
                         .to = to});
  }
}

void KvState::Apply(const SlotCopies& copies) {
  CopyPages(copies.pages, copies.state_lines, pages_, pages_);
}

void KvState::Apply(const SwapOut& swap) {
  CopyPages(swap.pages, swap.state_lines, pages_, offload_memory_.pages);
  size_t first_head = 0;
  for (const GroupState& group : groups_) {
    group.SwapOut(swap.slot, offload_memory_.HeadsOf(swap.index), first_head);
    first_head += group.group().NumHeads();
  }
}

void KvState::Apply(const SwapIn& swap) {
  CopyPages(swap.pages, swap.state_lines, offload_memory_.pages, pages_);
  size_t first_head = 0;
  for (const GroupState& group : groups_) {
    group.SwapIn(swap.slot, offload_memory_.HeadsOf(swap.index), first_head);
    first_head += group.group().NumHeads();
  }
}

void KvState::Apply(const SlotFork& fork) {
  for (GroupState& group : groups_) group.Fork(fork);
}

void KvState::Apply(const SlotPlan& decision) {
  SetPlan(decision.slot, decision.plan);
  const ScoreMix mix = decision.plan.scorer->Mix(decision.plan);
  backend_->CombineCachedScores({.slot = decision.slot,
                                 .weight_score = mix.of_score,
                                 .weight_second = mix.of_second,
                                 .pages = pages_,
                                 .tables = tables()});
}

// Rows are in the order of groups.
void KvState::Apply(const TableRow& row) {
  rows_[row.slot] = row;
  int64_t begin = row.row_begin;
  for (GroupState& group : groups_) begin = group.SetRows(row.slot, begin, row.row_width);
  row_width_.Write(*backend_, row.slot, std::span(&row.row_width, 1));
}

void KvState::WriteTable(std::span<const TableUpdate> writes) {
  for (size_t begin = 0; begin < writes.size(); begin += updates_.size())
    WritePartOfTable(writes.subspan(begin, std::min(updates_.size(), writes.size() - begin)));
}

// An entry may be written several times: only its last write is sent, because UpdateTable() applies
// its updates in any order.
void KvState::WritePartOfTable(std::span<const TableUpdate> writes) {
  ++list_;
  distinct_.clear();
  for (size_t i = writes.size(); i-- > 0;) {
    uint64_t& list = list_of_[writes[i].index];
    if (std::exchange(list, list_) != list_) distinct_.push_back(writes[i]);
  }
  updates_.Write(*backend_, 0, distinct_);
  backend_->UpdateTable({.updates = updates_.data(),
                         .count = static_cast<int>(distinct_.size()),
                         .blocks = blocks_.data()});
}

void KvState::Apply(const SlotSetup& setup) {
  unassigned_.Write(*backend_, setup.slot, std::span(&setup.unassigned_pages, 1));
  for (GroupState& group : groups_) group.SetUp(setup);
}

}  // namespace hydrant
