#include "engine/run/pool/group_state.h"

namespace hydrant {

KvPages WithState(KvPages pages, int state_lines) {
  if (state_lines < kScoreLines) pages.scores = nullptr;
  if (state_lines < kAllStateLines) pages.log_weights = nullptr;
  return pages;
}

absl::Status GroupState::Allocate(Backend* backend, const EngineLimits& limits,
                                  const KvPages& pages, const SequenceTables& shared) {
  const size_t seqs = limits.max_num_seqs;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend, count);
    return array.data();
  };
  backend_ = backend;
  pages_ = pages;
  plans_.resize(seqs);
  shared_tokens_.assign(seqs, 0);
  tables_ = shared;
  tables_.num_layers = group_.num_layers;
  tables_.num_kv_heads = group_.num_kv_heads;
  tables_.row_begin = allocate(row_begin_, seqs);
  tables_.caps = allocate(caps_, seqs * NumHeads());
  tables_.lengths = allocate(lengths_, seqs * NumHeads());
  tables_.victims = allocate(victims_, seqs * NumHeads());
  tables_.rules = allocate(rules_, seqs);
  return status;
}

void GroupState::SetUp(const SlotSetup& setup) {
  const CachePlan& plan = plans_[setup.slot] = group_.PlanOf(setup.plan);
  shared_tokens_[setup.slot] = IsBudget() ? setup.shared_tokens : 0;
  // Heads with reported lengths get their caps when they are compacted.
  std::vector<int32_t> caps(NumHeads(), kNoCap);
  if (!plan.retention->ReportsPrompt()) {
    for (size_t head = 0; head < caps.size(); ++head)
      caps[head] =
          plan.retention->InitialSpan(plan, static_cast<int>(head) / group_.num_kv_heads).cap;
  }
  const size_t first = setup.slot * NumHeads();
  rules_.Write(*backend_, setup.slot, std::span(&plan.rule, 1));
  caps_.Write(*backend_, first, caps);
  lengths_.Write(*backend_, first, std::vector<int32_t>(NumHeads(), 0));
  victims_.Write(*backend_, first, std::vector<int32_t>(NumHeads(), -1));
}

void GroupState::SetPlan(int slot, const CachePlan& plan) {
  plans_[slot] = plan;
  rules_.Write(*backend_, slot, std::span(&plan.rule, 1));
}

void GroupState::RaiseCaps(const SlotAppend& append) {
  plans_[append.slot].cap = append.budget.cap;
  rules_.Write(*backend_, append.slot, std::span(&append.budget.rule, 1));
  caps_.Write(*backend_, append.slot * NumHeads(), append.caps);
}

int64_t GroupState::SetRows(int slot, int64_t begin, int32_t row_width) {
  row_begin_.Write(*backend_, slot, std::span(&begin, 1));
  return begin + static_cast<int64_t>(NumHeads()) * row_width;
}

void GroupState::SwapOut(int slot, const OffloadedHeads& offloaded, size_t first_head) const {
  const size_t bytes = NumHeads() * sizeof(int32_t);
  const size_t from = slot * NumHeads();
  backend_->CopyOnDevice(offloaded.caps + first_head, caps_.data() + from, bytes);
  backend_->CopyOnDevice(offloaded.lengths + first_head, lengths_.data() + from, bytes);
  backend_->CopyOnDevice(offloaded.victims + first_head, victims_.data() + from, bytes);
}

void GroupState::SwapIn(int slot, const OffloadedHeads& offloaded, size_t first_head) const {
  const size_t bytes = NumHeads() * sizeof(int32_t);
  const size_t to = slot * NumHeads();
  backend_->CopyOnDevice(caps_.data() + to, offloaded.caps + first_head, bytes);
  backend_->CopyOnDevice(lengths_.data() + to, offloaded.lengths + first_head, bytes);
  backend_->CopyOnDevice(victims_.data() + to, offloaded.victims + first_head, bytes);
}

void GroupState::Fork(const SlotFork& fork) {
  const size_t bytes = NumHeads() * sizeof(int32_t);
  for (int32_t* values : {caps_.data(), lengths_.data(), victims_.data()})
    backend_->CopyOnDevice(values + fork.slot * NumHeads(), values + fork.from * NumHeads(), bytes);
}

}  // namespace hydrant
