// The runs of a step: a decoded token of each running sequence, parts of prompts under a budget,
// and the record of both in the ledger. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_BATCH_BUILDER_H_
#define HYDRANT_SCHEDULER_BATCH_BUILDER_H_

#include <cstdint>
#include <vector>

#include "engine/cache/kv_cache_manager.h"
#include "engine/run/step/batch.h"
#include "scheduler/prefill_planner.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_table.h"
#include "scheduler/slo_control.h"
#include "scheduler/step_ledger.h"

namespace hydrant {

class BatchBuilder {
 public:
  // Borrows all; they outlive it.
  BatchBuilder(const EngineLimits& limits, SequenceTable* table, KvCacheManager* kv_cache,
               StepLedger* ledger, const SloControl* slo)
      : limits_(limits), table_(*table), kv_cache_(*kv_cache), ledger_(*ledger), slo_(*slo) {}

  // Every running sequence decodes one token; those whose cache comes back in this step run from
  // the next one on.
  void AddDecode(TimeUs now, Batch* batch);
  void AddPrefill(TimeUs now, Batch* batch);

 private:
  TokenRun RunOf(const RunPart& part, const Sequence& sequence) const;
  void Advance(const TokenRun& run, std::vector<RequestHandle> samples, Sequence* sequence);
  std::vector<RequestHandle> AddSamples(const Sequence& sequence, Batch* batch);
  StepWork WorkOf(const TokenRun& run) const;

  const EngineLimits& limits_;
  SequenceTable& table_;
  KvCacheManager& kv_cache_;
  StepLedger& ledger_;
  const SloControl& slo_;
  std::vector<Sequence*> reading_;  // scratch of AddPrefill
  std::vector<OpenPrompt> open_prompts_;
  int64_t more_samples_ = 0;  // that the step draws
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_BATCH_BUILDER_H_
