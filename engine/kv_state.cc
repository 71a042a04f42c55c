#include "engine/kv_state.h"

#include <span>

namespace hydrant {

KvState::KvState(Backend* backend, const KvLayout& layout, const EngineLimits& limits)
    : backend_(backend), limits_(limits), plans_(limits.max_num_seqs) {
  pages_.layout = layout;
  tables_.num_layers = limits.num_layers;
  tables_.num_kv_heads = limits.num_kv_heads;
}

absl::StatusOr<std::unique_ptr<KvState>> KvState::Create(Backend* backend, const KvLayout& layout,
                                                         const EngineLimits& limits) {
  std::unique_ptr<KvState> state(new KvState(backend, layout, limits));
  if (absl::Status status = state->Allocate(); !status.ok()) return status;
  return state;
}

absl::Status KvState::Allocate() {
  const size_t slots = static_cast<size_t>(pages_.layout.num_blocks) * pages_.layout.block_size;
  const size_t page_bytes = BytesOf(pages_.layout.dtype, slots * pages_.layout.head_dim);
  const size_t seqs = limits_.max_num_seqs;
  const size_t heads = seqs * limits_.num_layers * limits_.num_kv_heads;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend_, count);
    return array.data();
  };
  pages_.keys = allocate(keys_, page_bytes);
  pages_.values = allocate(values_, page_bytes);
  pages_.positions = allocate(positions_, slots);
  pages_.scores = allocate(scores_, slots);
  tables_.blocks = allocate(blocks_, limits_.table_entries);
  tables_.row_begin = allocate(row_begin_, seqs);
  tables_.row_width = allocate(row_width_, seqs);
  tables_.caps = allocate(caps_, heads);
  tables_.lengths = allocate(lengths_, heads);
  tables_.victims = allocate(victims_, heads);
  tables_.rules = allocate(rules_, seqs);
  return status;
}

void KvState::Apply(const Batch& batch) {
  for (const SlotSetup& setup : batch.setups) SetUp(setup);
  for (const TableRow& row : batch.rows) {
    row_begin_.Write(*backend_, row.slot, std::span(&row.row_begin, 1));
    row_width_.Write(*backend_, row.slot, std::span(&row.row_width, 1));
  }
  for (const TableUpdate& update : batch.updates)
    blocks_.Write(*backend_, update.index, std::span(&update.block, 1));
}

void KvState::SetUp(const SlotSetup& setup) {
  const size_t heads = static_cast<size_t>(limits_.num_layers) * limits_.num_kv_heads;
  const size_t first = setup.slot * heads;
  plans_[setup.slot] = setup.plan;
  rules_.Write(*backend_, setup.slot, std::span(&setup.plan.rule, 1));
  caps_.Write(*backend_, first, std::vector<int32_t>(heads, setup.plan.cap));
  lengths_.Write(*backend_, first, std::vector<int32_t>(heads, 0));
  victims_.Write(*backend_, first, std::vector<int32_t>(heads, -1));
}

}  // namespace hydrant
