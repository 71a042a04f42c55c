// The contexts in memory, with their host pages. The least recently used are evicted when room is
// needed. Owned by the scheduler's thread, except the directory.
#ifndef HYDRANT_SCHEDULER_CONTEXT_TABLE_H_
#define HYDRANT_SCHEDULER_CONTEXT_TABLE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>

#include "engine/cache/kv_cache_manager.h"
#include "scheduler/context.h"

namespace hydrant {

class ContextTable {
 public:
  // Limits: host pages and number of caches. Borrows the KV cache and the directory.
  ContextTable(int64_t max_pages, int64_t max_contexts, KvCacheManager* kv_cache,
               ContextDirectory* directory)
      : max_pages_(max_pages),
        max_contexts_(max_contexts),
        kv_cache_(kv_cache),
        directory_(directory) {}
  ~ContextTable();
  ContextTable(const ContextTable&) = delete;
  ContextTable& operator=(const ContextTable&) = delete;

  // Copies the cache in `blocks`, replacing a context of the same id; false: no room even if all
  // evictable contexts were evicted, and none was.
  bool Keep(std::shared_ptr<const Context> context, const SequenceBlocks& blocks,
            CacheUpdates* updates);
  // The memory of the context, marked as used; null: it was evicted.
  const OffloadedCache* Use(const Context& context);
  bool Remove(const ContextId& id);  // false: unknown id

  // Reserves memory for a loaded cache, as Keep(); empty: no room. After writing it, the caller
  // must call Add() or Unreserve().
  OffloadedCache Reserve(std::span<const HeadSpan> spans, std::span<const int32_t> pages);
  void Add(std::shared_ptr<const Context> context, OffloadedCache offloaded);
  void Unreserve(OffloadedCache offloaded);

  // Holds a context's memory until Release(), even if the context is removed. Null: unknown id.
  struct Lease {
    std::shared_ptr<const Context> context;
    const OffloadedCache* offloaded = nullptr;
  };
  Lease Acquire(const ContextId& id);
  void Release(const Lease& lease);

  int64_t size() const { return static_cast<int64_t>(contexts_.size()); }
  // Includes reserved pages that are not added yet.
  int64_t NumHostPages() const { return host_pages_; }
  uint64_t num_evicted() const { return num_evicted_; }

 private:
  struct Entry {
    std::shared_ptr<const Context> context;
    OffloadedCache offloaded;
    int leases = 0;
    bool removed = false;  // waits for its leases
    bool IsEvictable() const { return leases == 0 && !context->pinned; }
  };
  using List = std::list<Entry>;

  // Evicts until `pages` pages and a place are free; false: not possible, and none was evicted.
  bool MakeRoom(int64_t pages);
  void Insert(std::shared_ptr<const Context> context, OffloadedCache offloaded);
  void Drop(List::iterator entry);
  void Count(const OffloadedCache& offloaded, int sign);
  void DropOffloaded(OffloadedCache* offloaded);

  const int64_t max_pages_, max_contexts_;
  KvCacheManager* const kv_cache_;
  ContextDirectory* const directory_;
  List by_use_;                                   // least recently used first
  std::map<ContextId, List::iterator> contexts_;  // without removed ones
  // All in by_use_, and reservations:
  int64_t host_pages_ = 0, num_caches_ = 0;
  uint64_t num_evicted_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_TABLE_H_
