#include "scheduler/sequence_table.h"

#include <algorithm>

#include "kernels/check.h"

namespace hydrant {

Sequence* SequenceTable::Add(const std::string& tenant, std::unique_ptr<Sequence> owned) {
  Sequence* const sequence = owned.get();
  HYDRANT_CHECK(sequences_.emplace(sequence->handle, std::move(owned)).second);
  queued_tokens_ += sequence->progress.NumKnown();
  queue_.Open(tenant, sequence);
  queue_.Add(sequence);
  if (sequence->request.deadline.has_value())
    deadlines_.emplace(*sequence->request.deadline, sequence->handle);
  return sequence;
}

std::unique_ptr<Sequence> SequenceTable::Remove(Sequence* sequence) {
  if (sequence->IsWaiting()) {
    LeaveQueue(sequence);
  } else {
    live_.erase(std::find(live_.begin(), live_.end(), sequence));
  }
  if (sequence->request.deadline.has_value())
    deadlines_.erase({*sequence->request.deadline, sequence->handle});
  SetBeginBy(sequence, std::nullopt);
  queue_.Close(sequence);
  sequence->MoveTo(Phase::kEnded);
  const auto it = sequences_.find(sequence->handle);
  std::unique_ptr<Sequence> owned = std::move(it->second);
  sequences_.erase(it);
  return owned;
}

Sequence* SequenceTable::Find(RequestHandle handle) const {
  const auto it = sequences_.find(handle);
  return it == sequences_.end() ? nullptr : it->second.get();
}

void SequenceTable::LeaveQueue(Sequence* sequence) {
  queued_tokens_ -= sequence->progress.NumKnown();
  queue_.Erase(sequence);
}

void SequenceTable::AddLive(Sequence* sequence) {
  SetBeginBy(sequence, std::nullopt);
  const auto goes_before = [](const Sequence* a, const Sequence* b) {
    return a->request.order < b->request.order;
  };
  live_.insert(std::upper_bound(live_.begin(), live_.end(), sequence, goes_before), sequence);
}

void SequenceTable::Requeue(Sequence* sequence, Phase to) {
  live_.erase(std::find(live_.begin(), live_.end(), sequence));
  sequence->MoveTo(to);
  queued_tokens_ += sequence->progress.NumKnown();
  queue_.Add(sequence);
}

void SequenceTable::AddToken(Sequence* sequence, TokenId token) {
  sequence->progress.tokens.push_back(token);
  if (sequence->IsWaiting()) ++queued_tokens_;  // it was preempted with this token on its way
}

void SequenceTable::SetBeginBy(Sequence* sequence, std::optional<TimeUs> by) {
  std::optional<TimeUs>& before = sequence->latency.begin_by;
  if (before.has_value()) begin_by_.erase({*before, sequence->handle});
  before = by;
  if (by.has_value()) begin_by_.emplace(*by, sequence->handle);
}

Sequence* SequenceTable::FirstUntil(TimeUs now, const TimeIndex& index) const {
  if (index.empty() || index.begin()->first > now) return nullptr;
  return Find(index.begin()->second);
}

}  // namespace hydrant
