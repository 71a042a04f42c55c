// The contexts that the scheduler keeps, with the memory behind each. Those that were not used for
// longest leave when others want their room. Owned by the scheduler's thread, but for the
// directory.
#ifndef HYDRANT_SCHEDULER_CONTEXT_TABLE_H_
#define HYDRANT_SCHEDULER_CONTEXT_TABLE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>

#include "engine/cache/cache_space.h"
#include "scheduler/context.h"

namespace hydrant {

class ContextTable {
 public:
  // At most so many host pages and caches. Borrows space and directory.
  ContextTable(int64_t most_pages, int64_t most_contexts, CacheSpace* space,
               ContextDirectory* directory)
      : most_pages_(most_pages),
        most_contexts_(most_contexts),
        space_(space),
        directory_(directory) {}
  ~ContextTable();
  ContextTable(const ContextTable&) = delete;
  ContextTable& operator=(const ContextTable&) = delete;

  // Keeps a copy of the cache in `space`, in the place of one of the same id; false: there is no
  // room for it even when all have left that may, and none has.
  bool Keep(std::shared_ptr<const Context> context, const SequenceSpace& space,
            CacheUpdates* updates);
  // The memory of one that is still there, which counts as a use; null: it has left.
  const KeptSpace* Use(const Context& context);
  bool Remove(const ContextId& id);  // false: there is none

  // Memory for a cache that comes from elsewhere, as Keep(); empty: there is no room. Whoever has
  // written it adds it, or gives it back.
  KeptSpace Reserve(std::span<const HeadSpan> spans, std::span<const int32_t> pages);
  void Add(std::shared_ptr<const Context> context, KeptSpace space);
  void GiveBack(KeptSpace space);

  // One that somebody reads: its memory stays until Release(), whatever becomes of it. Null: there
  // is none.
  struct Lease {
    std::shared_ptr<const Context> context;
    const KeptSpace* space = nullptr;
  };
  Lease Acquire(const ContextId& id);
  void Release(const Lease& lease);

  int64_t size() const { return static_cast<int64_t>(contexts_.size()); }
  // That they hold, or will when they are added.
  int64_t NumHostPages() const { return host_pages_; }
  uint64_t num_evicted() const { return num_evicted_; }

 private:
  struct Kept {
    std::shared_ptr<const Context> context;
    KeptSpace space;
    int leases = 0;
    bool removed = false;  // its memory is still leased
    bool MayLeave() const { return leases == 0 && !context->pinned; }
  };
  using List = std::list<Kept>;

  // Evicts so that so many pages are free; false: not enough may leave, and none has.
  bool MakeRoom(int64_t pages);
  void Insert(std::shared_ptr<const Context> context, KeptSpace space);
  void Drop(List::iterator kept);
  void Count(const KeptSpace& space, int sign);
  void DropSpace(KeptSpace* space);

  const int64_t most_pages_, most_contexts_;
  CacheSpace* const space_;
  ContextDirectory* const directory_;
  List by_use_;                                   // the least recently used first
  std::map<ContextId, List::iterator> contexts_;  // those that were not removed
  // Of all in by_use_, and of those that are reserved.
  int64_t host_pages_ = 0, num_caches_ = 0;
  uint64_t num_evicted_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_TABLE_H_
