#include "scheduler/context_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hydrant {

ContextTable::~ContextTable() {
  for (Entry& entry : by_use_) {
    directory_->Remove(*entry.context);
    kv_cache_->Drop(&entry.offloaded);
  }
}

bool ContextTable::Keep(std::shared_ptr<const Context> context, const SequenceBlocks& blocks,
                        CacheUpdates* updates) {
  if (!MakeRoom(blocks.NumDataPages())) return false;
  OffloadedCache offloaded;
  if (!kv_cache_->TrySwapOut(blocks, &offloaded, updates)) return false;
  Count(offloaded, 1);
  Insert(std::move(context), std::move(offloaded));
  return true;
}

OffloadedCache ContextTable::Reserve(std::span<const HeadSpan> spans,
                                     std::span<const int32_t> pages) {
  int64_t all = 0;
  for (const int32_t of_head : pages) all += of_head;
  OffloadedCache offloaded;
  if (MakeRoom(all) && kv_cache_->TryReserve(spans, pages, &offloaded)) Count(offloaded, 1);
  return offloaded;
}

void ContextTable::Add(std::shared_ptr<const Context> context, OffloadedCache offloaded) {
  Insert(std::move(context), std::move(offloaded));
}

void ContextTable::Unreserve(OffloadedCache offloaded) { DropOffloaded(&offloaded); }

void ContextTable::Insert(std::shared_ptr<const Context> context, OffloadedCache offloaded) {
  Remove(context->id);
  by_use_.push_back({.context = std::move(context), .offloaded = std::move(offloaded)});
  const Entry& added = by_use_.back();
  directory_->Add(added.context);
  contexts_[added.context->id] = std::prev(by_use_.end());
}

bool ContextTable::MakeRoom(int64_t pages) {
  int64_t free = max_pages_ - host_pages_;
  bool has_place = num_caches_ < max_contexts_;
  auto end = by_use_.begin();
  for (; (free < pages || !has_place) && end != by_use_.end(); ++end) {
    if (!end->IsEvictable()) continue;
    free += static_cast<int64_t>(end->offloaded.host_pages.size());
    has_place = true;
  }
  if (free < pages || !has_place) return false;
  for (auto it = by_use_.begin(); it != end;) {
    const auto entry = it++;
    if (!entry->IsEvictable()) continue;
    Drop(entry);
    ++num_evicted_;
  }
  return true;
}

const OffloadedCache* ContextTable::Use(const Context& context) {
  const auto it = contexts_.find(context.id);
  if (it == contexts_.end() || it->second->context.get() != &context) return nullptr;
  by_use_.splice(by_use_.end(), by_use_, it->second);
  return &it->second->offloaded;
}

bool ContextTable::Remove(const ContextId& id) {
  const auto it = contexts_.find(id);
  if (it == contexts_.end()) return false;
  Drop(it->second);
  return true;
}

void ContextTable::Drop(List::iterator entry) {
  directory_->Remove(*entry->context);
  contexts_.erase(entry->context->id);
  entry->removed = true;
  if (entry->leases > 0) return;
  DropOffloaded(&entry->offloaded);
  by_use_.erase(entry);
}

ContextTable::Lease ContextTable::Acquire(const ContextId& id) {
  const auto it = contexts_.find(id);
  if (it == contexts_.end()) return {};
  ++it->second->leases;
  return {it->second->context, &it->second->offloaded};
}

void ContextTable::Release(const Lease& lease) {
  const auto is_it = [&](const Entry& entry) { return &entry.offloaded == lease.offloaded; };
  const auto entry = std::find_if(by_use_.begin(), by_use_.end(), is_it);
  if (--entry->leases > 0 || !entry->removed) return;
  DropOffloaded(&entry->offloaded);
  by_use_.erase(entry);
}

void ContextTable::Count(const OffloadedCache& offloaded, int sign) {
  host_pages_ += sign * static_cast<int64_t>(offloaded.host_pages.size());
  num_caches_ += sign;
}

void ContextTable::DropOffloaded(OffloadedCache* offloaded) {
  if (offloaded->IsEmpty()) return;
  Count(*offloaded, -1);
  kv_cache_->Drop(offloaded);
}

}  // namespace hydrant
