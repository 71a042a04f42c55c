// Pages for a sequence that grows, taken from others where the pool is dry: caches that may be
// shrunk first, then whole sequences, which are preempted. A preempted cache moves to host memory
// where there is room, else it is released. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_RECLAIMER_H_
#define HYDRANT_SCHEDULER_RECLAIMER_H_

#include <cstdint>

#include "engine/cache/kv_cache_manager.h"
#include "scheduler/cache_compactor.h"
#include "scheduler/prompt_reuse.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_table.h"
#include "scheduler/slo_control.h"
#include "scheduler/step_ledger.h"

namespace hydrant {

class Reclaimer {
 public:
  struct Parts {
    SequenceTable* table;
    KvCacheManager* kv_cache;
    StepLedger* ledger;
    CacheCompactor* compactor;
    PromptReuse* reuse;
    const SloControl* slo;
  };
  // Borrows all; they outlive it.
  Reclaimer(const EngineLimits& limits, const Parts& parts) : limits_(limits), parts_(parts) {}

  enum class Growth : uint8_t {
    kGrown,      // the sequence has pages for so many tokens
    kPreempted,  // it was preempted itself
    kTooLarge,   // it is alone and does not fit; CheckRequest excludes that
  };
  Growth Grow(int64_t tokens, TimeUs now, Sequence* sequence, CacheUpdates* updates);

  // Pages of host memory that preempted caches take.
  int64_t NumSwappedPages() const { return swapped_pages_; }
  // The cache in host memory is not needed any more. Steps run in order, so pages that the step at
  // work reads may be given to others.
  void DropSwapped(Sequence* sequence);

  // Caches that were released, and that were moved to host memory.
  uint64_t num_preemptions() const { return num_preemptions_; }
  uint64_t num_swaps() const { return num_swaps_; }

 private:
  Sequence* PickVictim(const CacheUpdates& updates) const;
  double WorkLostBy(const Sequence& sequence, const CacheUpdates& updates) const;
  void Preempt(Sequence* sequence, CacheUpdates* updates);
  void Release(Sequence* sequence, CacheUpdates* updates);
  bool MaySwapOut(const Sequence& sequence, const CacheUpdates& updates) const;
  bool TrySwapOut(Sequence* sequence, CacheUpdates* updates);
  void ForgetUpdates(const Sequence& sequence, CacheUpdates* updates);

  const EngineLimits& limits_;
  const Parts parts_;
  int64_t swapped_pages_ = 0;
  uint64_t num_preemptions_ = 0, num_swaps_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_RECLAIMER_H_
