// Compactions of running caches, required by their plans or to make room for other requests
// (OnPressure::kEvict). Writes SlotCompaction and SlotAppend updates, and notes each compaction in
// the step that is being scheduled. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_CACHE_COMPACTOR_H_
#define HYDRANT_SCHEDULER_CACHE_COMPACTOR_H_

#include <cstdint>
#include <vector>

#include "engine/cache/kv_cache_manager.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_table.h"
#include "scheduler/step_ledger.h"

namespace hydrant {

class CacheCompactor {
 public:
  // Borrows all; they outlive it.
  CacheCompactor(const EngineLimits& limits, SequenceTable* table, KvCacheManager* kv_cache,
                 StepLedger* ledger)
      : limits_(limits), table_(*table), kv_cache_(*kv_cache), ledger_(*ledger) {}

  // The compactions that free pages; other sequences may get these pages in the same step. The
  // other compactions, which move entries within pages, follow when the sequence has grown
  // (CompactInPlace()): by then shared pages have been copied.
  void CompactRunning(CacheUpdates* updates);
  void CompactInPlace(Sequence* sequence, CacheUpdates* updates);
  // A context that another prompt follows may hold more. Does nothing the second time.
  void BeginAppend(const TokenRange& range, Sequence* sequence, CacheUpdates* updates);

  // Shrinks the cache that this frees the most pages of; false: no cache may be shrunk.
  bool TryShrink(CacheUpdates* updates);
  uint64_t num_shrinks() const { return num_shrinks_; }

 private:
  bool IsCompactionDue(const Sequence& sequence) const;
  void Add(SlotCompaction compaction, Sequence* sequence, CacheUpdates* updates);
  int32_t ShrinksTo(const Sequence& sequence) const;
  void Shrink(int32_t mean, Sequence* sequence, CacheUpdates* updates);

  const EngineLimits& limits_;
  SequenceTable& table_;
  KvCacheManager& kv_cache_;
  StepLedger& ledger_;
  uint64_t num_shrinks_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CACHE_COMPACTOR_H_
