// Compacts entries in pages, after a prompt's layers have been written or while decoding. All
// PageCompactions are carried out here. Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_COMPRESS_PAGE_COMPACTOR_H_
#define HYDRANT_ENGINE_RUN_COMPRESS_PAGE_COMPACTOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/cache/engine_limits.h"
#include "engine/run/compress/head_budgets.h"
#include "engine/run/compress/sample_stream.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"

namespace hydrant {

class PageCompactor {
 public:
  // Borrows the backend.
  absl::Status Allocate(Backend* backend, const EngineLimits& limits);

  HeadBudgets& budgets() { return budgets_; }
  const HeadBudgets& budgets() const { return budgets_; }
  SampleStream& samples() { return samples_; }

  // tokens: seen by the slot so far.
  void Compact(const CachePlan& plan, const PageCompaction& compaction, int slot, int32_t tokens,
               const KvState& kv);

  // Compacts all layers by run.turn, after the run has left the last one. No effect on other runs.
  void CompactTurn(const TokenRun& run, const KvState& kv);

 private:
  Backend* backend_ = nullptr;
  EngineLimits limits_;
  HeadBudgets budgets_;
  SampleStream samples_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_COMPRESS_PAGE_COMPACTOR_H_
