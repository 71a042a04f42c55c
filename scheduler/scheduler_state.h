// A scheduler's state at a moment, to read between steps.
#ifndef HYDRANT_SCHEDULER_SCHEDULER_STATE_H_
#define HYDRANT_SCHEDULER_SCHEDULER_STATE_H_

#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/prefix_cache.h"
#include "engine/run/step/batch.h"
#include "scheduler/context_table.h"
#include "scheduler/sequence_table.h"
#include "scheduler/step_ledger.h"

namespace hydrant {

// References into the scheduler.
struct SchedulerState {
  const EngineLimits& limits;
  const SequenceTable& table;
  const KvCacheManager& kv_cache;
  const PrefixCache& prefix_cache;
  const ContextTable& contexts;
  const StepLedger& ledger;
  const Batch& batch;
  int64_t swapped_pages = 0;  // in host memory, of preempted sequences
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SCHEDULER_STATE_H_
