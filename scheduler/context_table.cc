#include "scheduler/context_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hydrant {

ContextTable::~ContextTable() {
  for (Kept& kept : by_use_) {
    directory_->Remove(*kept.context);
    space_->Drop(&kept.space);
  }
}

bool ContextTable::Keep(std::shared_ptr<const Context> context, const SequenceSpace& space,
                        CacheUpdates* updates) {
  if (!MakeRoom(space.NumDataPages())) return false;
  KeptSpace kept;
  if (!space_->TrySwapOut(space, &kept, updates)) return false;
  Count(kept, 1);
  Insert(std::move(context), std::move(kept));
  return true;
}

KeptSpace ContextTable::Reserve(std::span<const HeadSpan> spans, std::span<const int32_t> pages) {
  int64_t all = 0;
  for (const int32_t of_head : pages) all += of_head;
  KeptSpace kept;
  if (MakeRoom(all) && space_->TryReserve(spans, pages, &kept)) Count(kept, 1);
  return kept;
}

void ContextTable::Add(std::shared_ptr<const Context> context, KeptSpace space) {
  Insert(std::move(context), std::move(space));
}

void ContextTable::GiveBack(KeptSpace space) { DropSpace(&space); }

void ContextTable::Insert(std::shared_ptr<const Context> context, KeptSpace space) {
  Remove(context->id);
  by_use_.push_back({.context = std::move(context), .space = std::move(space)});
  const Kept& added = by_use_.back();
  directory_->Add(added.context);
  contexts_[added.context->id] = std::prev(by_use_.end());
}

bool ContextTable::MakeRoom(int64_t pages) {
  int64_t free = most_pages_ - host_pages_;
  bool has_place = num_caches_ < most_contexts_;
  auto end = by_use_.begin();
  for (; (free < pages || !has_place) && end != by_use_.end(); ++end) {
    if (!end->MayLeave()) continue;
    free += static_cast<int64_t>(end->space.host_pages.size());
    has_place = true;
  }
  if (free < pages || !has_place) return false;
  for (auto it = by_use_.begin(); it != end;) {
    const auto kept = it++;
    if (!kept->MayLeave()) continue;
    Drop(kept);
    ++num_evicted_;
  }
  return true;
}

const KeptSpace* ContextTable::Use(const Context& context) {
  const auto it = contexts_.find(context.id);
  if (it == contexts_.end() || it->second->context.get() != &context) return nullptr;
  by_use_.splice(by_use_.end(), by_use_, it->second);
  return &it->second->space;
}

bool ContextTable::Remove(const ContextId& id) {
  const auto it = contexts_.find(id);
  if (it == contexts_.end()) return false;
  Drop(it->second);
  return true;
}

void ContextTable::Drop(List::iterator kept) {
  directory_->Remove(*kept->context);
  contexts_.erase(kept->context->id);
  kept->removed = true;
  if (kept->leases > 0) return;
  DropSpace(&kept->space);
  by_use_.erase(kept);
}

ContextTable::Lease ContextTable::Acquire(const ContextId& id) {
  const auto it = contexts_.find(id);
  if (it == contexts_.end()) return {};
  ++it->second->leases;
  return {it->second->context, &it->second->space};
}

void ContextTable::Release(const Lease& lease) {
  const auto is_it = [&](const Kept& kept) { return &kept.space == lease.space; };
  const auto kept = std::find_if(by_use_.begin(), by_use_.end(), is_it);
  if (--kept->leases > 0 || !kept->removed) return;
  DropSpace(&kept->space);
  by_use_.erase(kept);
}

void ContextTable::Count(const KeptSpace& space, int sign) {
  host_pages_ += sign * static_cast<int64_t>(space.host_pages.size());
  num_caches_ += sign;
}

void ContextTable::DropSpace(KeptSpace* space) {
  if (space->IsEmpty()) return;
  Count(*space, -1);
  space_->Drop(space);
}

}  // namespace hydrant
