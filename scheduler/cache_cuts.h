// Cuts of running caches: those that plans ask for, and those that make room for others
// (OnPressure::kEvict). Writes SlotCut and SlotTurn updates, and notes each cut in the step that is
// being scheduled. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_CACHE_CUTS_H_
#define HYDRANT_SCHEDULER_CACHE_CUTS_H_

#include <cstdint>
#include <vector>

#include "engine/cache/cache_space.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_table.h"
#include "scheduler/step_ledger.h"

namespace hydrant {

class CacheCuts {
 public:
  // Borrows all; they outlive it.
  CacheCuts(const EngineLimits& limits, SequenceTable* table, CacheSpace* space, StepLedger* ledger)
      : limits_(limits), table_(*table), space_(*space), ledger_(*ledger) {}

  // The cuts that free pages; other sequences may get these pages in the same step. The other cuts,
  // which move entries within pages, follow when the sequence has grown (CutInPlace()): by then
  // shared pages have been copied.
  void CutRunning(CacheUpdates* updates);
  void CutInPlace(Sequence* sequence, CacheUpdates* updates);
  // A context that another prompt follows may hold more. Does nothing the second time.
  void BeginTurn(const TokenRange& range, Sequence* sequence, CacheUpdates* updates);

  // Shrinks the cache that this frees the most pages of; false: no cache may be shrunk.
  bool TryShrink(CacheUpdates* updates);
  uint64_t num_shrinks() const { return num_shrinks_; }

 private:
  bool IsCutNow(const Sequence& sequence) const;
  void Add(SlotCut cut, Sequence* sequence, CacheUpdates* updates);
  int32_t ShrinksTo(const Sequence& sequence) const;
  void Shrink(int32_t mean, Sequence* sequence, CacheUpdates* updates);

  const EngineLimits& limits_;
  SequenceTable& table_;
  CacheSpace& space_;
  StepLedger& ledger_;
  uint64_t num_shrinks_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CACHE_CUTS_H_
