#include "engine/cache/prefix_cache.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace hydrant {

PrefixCache::PrefixCache(int num_blocks) : blocks_(num_blocks) {
  for (int id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

PrefixCache::~PrefixCache() {
  HYDRANT_CHECK(free_.size() + evictable_.size() == blocks_.size());  // every lease has ended
}

int PrefixCache::NumFilled(std::span<const PrefixKey> keys) const {
  int count = 0;
  for (const PrefixKey& key : keys) {
    if (!filled_.contains(key)) break;
    ++count;
  }
  return count;
}

PrefixCacheStats PrefixCache::Stats() const {
  PrefixCacheStats stats = totals_;
  stats.filled_blocks = static_cast<int64_t>(filled_.size());
  stats.blocks = static_cast<int64_t>(blocks_.size());
  return stats;
}

PrefixLease PrefixCache::Open(std::span<const PrefixKey> cached, std::span<const PrefixKey> fresh) {
  PrefixLease lease;
  for (const PrefixKey& key : cached) {
    const int32_t id = filled_.at(key);
    if (blocks_[id].readers++ == 0) evictable_.erase(blocks_[id].place);
    lease.cached.push_back(id);
  }
  int32_t id = 0;
  for (const PrefixKey& key : fresh) {
    if (!TakeBlock(&id)) break;
    lease.fresh.push_back(id);
    lease.keys.push_back(key);
  }
  return lease;
}

// A free block, or else the least recently used one.
bool PrefixCache::TakeBlock(int32_t* id) {
  if (!free_.empty()) {
    *id = free_.back();
    free_.pop_back();
    return true;
  }
  if (evictable_.empty()) return false;
  *id = EvictOldest();
  return true;
}

// REQUIRES: evictable_ is not empty
int32_t PrefixCache::EvictOldest() {
  const int32_t id = evictable_.front();
  evictable_.pop_front();
  filled_.erase(blocks_[id].key);
  blocks_[id].filled = false;
  if (watcher_ != nullptr) watcher_->OnEvicted(blocks_[id].key);
  ++totals_.evicted_blocks;
  return id;
}

int PrefixCache::EvictUnleased() {
  const auto count = static_cast<int>(evictable_.size());
  for (int i = 0; i < count; ++i) free_.push_back(EvictOldest());
  return count;
}

// A fresh block is freed if another prompt has filled one with the same key in the meantime.
void PrefixCache::Fill(PrefixLease* lease, const PrefixText& text) {
  std::vector<PrefixKey> filled;
  for (size_t i = lease->fresh.size(); i-- > 0;) {
    const int32_t id = lease->fresh[i];
    if (!filled_.emplace(lease->keys[i], id).second) {
      free_.push_back(id);
      continue;
    }
    blocks_[id].key = lease->keys[i];
    blocks_[id].filled = true;
    AddEvictable(id);
    filled.push_back(lease->keys[i]);
  }
  if (watcher_ != nullptr && !filled.empty()) watcher_->OnFilled(text, filled);
  EndLease(*lease);
  *lease = PrefixLease();
}

void PrefixCache::Abandon(PrefixLease* lease) {
  free_.insert(free_.end(), lease->fresh.rbegin(), lease->fresh.rend());
  EndLease(*lease);
  *lease = PrefixLease();
}

void PrefixCache::EndLease(const PrefixLease& lease) {
  for (auto id = lease.cached.rbegin(); id != lease.cached.rend(); ++id) {
    if (--blocks_[*id].readers == 0) AddEvictable(*id);
  }
}

void PrefixCache::AddEvictable(int32_t id) {
  blocks_[id].place = evictable_.insert(evictable_.end(), id);
}

absl::Status PrefixCache::CheckInvariants(std::span<const PrefixLease* const> leases) const {
  std::vector<int> readers(blocks_.size(), 0), owners(blocks_.size(), 0);
  for (const PrefixLease* lease : leases) {
    for (const int32_t id : lease->cached) ++readers[id];
    for (const int32_t id : lease->fresh) ++owners[id];
  }
  for (const int32_t id : free_) ++owners[id];
  for (const auto& [key, id] : filled_) {
    ++owners[id];
    if (!blocks_[id].filled || blocks_[id].key != key)
      return absl::InternalError(absl::StrCat("prefix block ", id, " is not what its key says"));
  }
  size_t unread = 0;
  for (size_t id = 0; id < blocks_.size(); ++id) {
    if (owners[id] != 1)
      return absl::InternalError(
          absl::StrCat("prefix block ", id, " is in ", owners[id], " lists"));
    if (readers[id] != blocks_[id].readers || (readers[id] > 0 && !blocks_[id].filled))
      return absl::InternalError(absl::StrCat("prefix block ", id, " has other readers"));
    unread += blocks_[id].filled && readers[id] == 0 ? 1 : 0;
  }
  if (unread != evictable_.size())
    return absl::InternalError("prefix blocks without a reader are not all listed");
  return absl::OkStatus();
}

}  // namespace hydrant
