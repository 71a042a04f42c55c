#include "tests/scheduler/shortage.h"

#include <algorithm>
#include <optional>

#include "kernels/check.h"

namespace hydrant {
namespace {

int64_t PartOf(int64_t free, int percent) { return (free * percent + 99) / 100; }

}  // namespace

Shortage::Shortage(const Parts& parts, Scheduler* scheduler)
    : kv_cache_(&scheduler->kv_cache()),
      pages_(Take(parts.pages, kv_cache_->NumUnreservedPages(), &kv_cache_->page_pool_)),
      host_pages_(
          Take(parts.host_pages, kv_cache_->host_pages_.NumFree(), &kv_cache_->host_pages_)),
      table_(Take(parts.table_entries, &kv_cache_->table_)),
      arena_(Take(parts.arena_tokens, &kv_cache_->arena_)) {
  const int64_t slots = PartOf(kv_cache_->NumFreeSlots(), parts.slots);
  slots_.assign(kv_cache_->free_slots_.end() - slots, kv_cache_->free_slots_.end());
  kv_cache_->free_slots_.resize(kv_cache_->free_slots_.size() - slots);
}

Shortage::~Shortage() {
  for (const int32_t page : pages_) kv_cache_->page_pool_.Free(page);
  for (const int32_t page : host_pages_) kv_cache_->host_pages_.Free(page);
  for (const auto& [begin, length] : table_) kv_cache_->table_.Free(begin, length);
  for (const auto& [begin, length] : arena_) kv_cache_->arena_.Free(begin, length);
  kv_cache_->free_slots_.insert(kv_cache_->free_slots_.end(), slots_.begin(), slots_.end());
}

std::vector<int32_t> Shortage::Take(int percent, int64_t free, BlockAllocator* blocks) {
  std::vector<int32_t> ids(PartOf(free, percent));
  HYDRANT_CHECK(blocks->Allocate(ids));
  return ids;
}

// Takes the largest ranges first.
Shortage::Ranges Shortage::Take(int percent, RangeAllocator* ranges) {
  Ranges taken;
  int64_t wanted = PartOf(ranges->NumFree(), percent);
  for (int64_t length = wanted; wanted > 0; length = std::min(length, wanted)) {
    const std::optional<int64_t> begin = ranges->Allocate(length);
    if (!begin.has_value()) {
      length = (length + 1) / 2;
      continue;
    }
    taken.emplace_back(*begin, length);
    wanted -= length;
  }
  return taken;
}

}  // namespace hydrant
