// Whether the sequence at the head of the queue may go live now: its latency targets, the pages it
// needs now and is likely to need later, a smaller cache where the pool is short. Owned by the
// scheduler's thread.
#ifndef HYDRANT_SCHEDULER_ADMISSION_H_
#define HYDRANT_SCHEDULER_ADMISSION_H_

#include <cstdint>
#include <optional>

#include "engine/cache/kv_cache_manager.h"
#include "scheduler/context_table.h"
#include "scheduler/pool_forecast.h"
#include "scheduler/prompt_reuse.h"
#include "scheduler/reclaimer.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_table.h"
#include "scheduler/slo_control.h"

namespace hydrant {

class Admission {
 public:
  struct Parts {
    SequenceTable* table;
    KvCacheManager* kv_cache;
    ContextTable* contexts;
    Reclaimer* reclaimer;
    const PromptReuse* reuse;
    const SloControl* slo;
  };
  // Borrows all; they outlive it. `watermark_pages`: stay free for the growth of live sequences.
  Admission(const EngineLimits& limits, int64_t watermark_pages, const Parts& parts)
      : limits_(limits), watermark_pages_(watermark_pages), parts_(parts) {}

  // Takes all pages that the sequence's known tokens need, with `updates` for the engine, and
  // decides its plan where that depends on the room. Unset: the sequence holds its pages; else the
  // reason why it waits, and nothing has changed.
  std::optional<WaitReason> TryAdmit(Sequence* sequence, CacheUpdates* updates);

 private:
  std::optional<WaitReason> TryResolveAndOpen(Sequence* sequence, CacheUpdates* updates);
  bool TryFallback(WaitReason lacked, Sequence* sequence, CacheUpdates* updates);
  std::optional<WaitReason> TryOpen(Sequence* sequence, CacheUpdates* updates);
  std::optional<WaitReason> TrySwapIn(Sequence* sequence, CacheUpdates* updates);
  CachePlan ResolveByRoom(const Sequence& sequence) const;
  bool HasRoomToResume(const Sequence& sequence) const;
  bool FitsLater(const Sequence& newcomer, int64_t shared);
  PoolForecast::Holder HolderOf(const Sequence& sequence) const;
  int64_t KeptFree() const { return parts_.table->live().empty() ? 0 : watermark_pages_; }

  const EngineLimits& limits_;
  const int64_t watermark_pages_;
  const Parts parts_;
  PoolForecast forecast_;  // scratch of FitsLater
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_ADMISSION_H_
