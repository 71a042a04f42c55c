// The contexts that the scheduler keeps, with the memory behind each. Those that were not used for
// longest leave when others want their room. Owned by the scheduler's thread, but for the
// directory.
#ifndef HYDRANT_SCHEDULER_CONTEXT_TABLE_H_
#define HYDRANT_SCHEDULER_CONTEXT_TABLE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "engine/cache/cache_space.h"
#include "scheduler/context.h"

namespace hydrant {

class ContextTable {
 public:
  // Borrows both.
  ContextTable(CacheSpace* space, ContextDirectory* directory)
      : space_(space), directory_(directory) {}
  ~ContextTable();
  ContextTable(const ContextTable&) = delete;
  ContextTable& operator=(const ContextTable&) = delete;

  // Keeps a copy of the cache in `space`; false: it is too large even for all the memory there is,
  // and no other has left.
  bool Keep(std::shared_ptr<const Context> context, const SequenceSpace& space,
            CacheUpdates* updates);
  // The memory of one that is still there, which counts as a use; null: it has left.
  const KeptSpace* Use(const Context& context);
  void Remove(const std::string& handle);

  int64_t size() const { return static_cast<int64_t>(contexts_.size()); }
  int64_t NumHostPages() const;  // that they hold; for tests
  uint64_t num_evicted() const { return num_evicted_; }

 private:
  struct Kept {
    std::shared_ptr<const Context> context;
    KeptSpace space;
  };

  CacheSpace* const space_;
  ContextDirectory* const directory_;
  std::list<Kept> by_use_;  // the least recently used first
  std::unordered_map<std::string, std::list<Kept>::iterator> contexts_;
  uint64_t num_evicted_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_TABLE_H_
