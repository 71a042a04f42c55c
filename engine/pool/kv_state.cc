#include "engine/pool/kv_state.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/cache/prompt_scorer.h"
#include "kernels/status_macros.h"

namespace hydrant {

KvState::KvState(Backend* backend, const KvLayout& layout, const EngineLimits& limits)
    : backend_(backend),
      limits_(limits),
      plans_(limits.max_num_seqs),
      list_of_(limits.table_entries, 0) {
  pages_.layout = layout;
  tables_.num_layers = limits.num_layers;
  tables_.num_kv_heads = limits.num_kv_heads;
}

absl::StatusOr<std::unique_ptr<KvState>> KvState::Create(Backend* backend, const KvLayout& layout,
                                                         const EngineLimits& limits) {
  std::unique_ptr<KvState> state(new KvState(backend, layout, limits));
  HYDRANT_RETURN_IF_ERROR(state->Allocate());
  return state;
}

absl::Status KvState::Allocate() {
  const size_t seqs = limits_.max_num_seqs;
  const size_t heads = seqs * limits_.num_layers * limits_.num_kv_heads;
  absl::Status status = AllocatePool();
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend_, count);
    return array.data();
  };
  tables_.blocks = allocate(blocks_, limits_.table_entries);
  tables_.row_begin = allocate(row_begin_, seqs);
  tables_.row_width = allocate(row_width_, seqs);
  tables_.caps = allocate(caps_, heads);
  tables_.lengths = allocate(lengths_, heads);
  tables_.victims = allocate(victims_, heads);
  tables_.rules = allocate(rules_, seqs);
  allocate(updates_, std::max<size_t>(heads, 1024));
  return status;
}

// One piece of memory, so that the device's granularity is received once. Its arrays begin where
// the widest access of a kernel may.
absl::Status KvState::AllocatePool() {
  constexpr size_t kAlignment = 256;
  const size_t slots = static_cast<size_t>(pages_.layout.num_blocks) * pages_.layout.block_size;
  size_t size = 0;
  const auto place = [&size](size_t bytes) {
    const size_t offset = size;
    size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  const size_t vector_bytes = BytesOf(pages_.layout.dtype, slots * pages_.layout.head_dim);
  const size_t keys = place(vector_bytes), values = place(vector_bytes);
  const size_t positions = place(slots * sizeof(int32_t)), scores = place(slots * sizeof(float));
  const size_t log_weights = place(2 * slots * sizeof(float));
  HYDRANT_RETURN_IF_ERROR(pool_.Allocate(*backend_, size));
  pages_.keys = pool_.data() + keys;
  pages_.values = pool_.data() + values;
  pages_.positions = reinterpret_cast<int32_t*>(pool_.data() + positions);
  pages_.scores = reinterpret_cast<float*>(pool_.data() + scores);
  pages_.log_weights = reinterpret_cast<float*>(pool_.data() + log_weights);
  return absl::OkStatus();
}

void KvState::Apply(const CacheUpdates& updates) {
  for (const SlotSetup& setup : updates.setups) SetUp(setup);
  for (const TableRow& row : updates.rows) {
    row_begin_.Write(*backend_, row.slot, std::span(&row.row_begin, 1));
    row_width_.Write(*backend_, row.slot, std::span(&row.row_width, 1));
  }
  for (size_t begin = 0; begin < updates.updates.size(); begin += updates_.size()) {
    const size_t count = std::min(updates_.size(), updates.updates.size() - begin);
    UpdateTable(std::span(updates.updates).subspan(begin, count));
  }
  for (const SlotDecision& decision : updates.decisions) Decide(decision);
}

void KvState::Decide(const SlotDecision& decision) {
  plans_[decision.slot] = decision.plan;
  rules_.Write(*backend_, decision.slot, std::span(&decision.plan.rule, 1));
  const ScoreMix mix = decision.plan.scorer->Mix(decision.plan);
  backend_->CombineCachedScores({.slot = decision.slot,
                                 .weight_score = mix.of_score,
                                 .weight_second = mix.of_second,
                                 .pages = pages_,
                                 .tables = tables_});
}

void KvState::SetCaps(int slot, int32_t cap) {
  const size_t heads = static_cast<size_t>(limits_.num_layers) * limits_.num_kv_heads;
  caps_.Write(*backend_, slot * heads, std::vector<int32_t>(heads, cap));
}

// An entry may change hands within a step: its last update counts.
void KvState::UpdateTable(std::span<const TableUpdate> updates) {
  ++list_;
  distinct_.clear();
  for (size_t i = updates.size(); i-- > 0;) {
    uint64_t& list = list_of_[updates[i].index];
    if (std::exchange(list, list_) != list_) distinct_.push_back(updates[i]);
  }
  updates_.Write(*backend_, 0, distinct_);
  backend_->UpdateTable({.updates = updates_.data(),
                         .count = static_cast<int>(distinct_.size()),
                         .blocks = blocks_.data()});
}

void KvState::SetUp(const SlotSetup& setup) {
  const size_t heads = static_cast<size_t>(limits_.num_layers) * limits_.num_kv_heads;
  const size_t first = setup.slot * heads;
  plans_[setup.slot] = setup.plan;
  rules_.Write(*backend_, setup.slot, std::span(&setup.plan.rule, 1));
  // What reports gets its caps when it is cut.
  const Lifecycle& life = *setup.plan.life;
  std::vector<int32_t> caps(heads, kNoCap);
  if (!life.ReportsPrompt()) {
    for (size_t head = 0; head < heads; ++head)
      caps[head] = life.Opening(setup.plan, static_cast<int>(head) / limits_.num_kv_heads).cap;
  }
  caps_.Write(*backend_, first, caps);
  lengths_.Write(*backend_, first, std::vector<int32_t>(heads, 0));
  victims_.Write(*backend_, first, std::vector<int32_t>(heads, -1));
}

}  // namespace hydrant
