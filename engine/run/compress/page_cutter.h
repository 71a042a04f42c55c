// Cuts caches whose entries lie in pages, when a prompt's last layer has been written or while they
// live: the one place where the engine does what a PageCut says. Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_COMPRESS_PAGE_CUTTER_H_
#define HYDRANT_ENGINE_RUN_COMPRESS_PAGE_CUTTER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/cache/engine_limits.h"
#include "engine/run/compress/head_budgets.h"
#include "engine/run/compress/sample_stream.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"

namespace hydrant {

class PageCutter {
 public:
  // Borrows the backend.
  absl::Status Allocate(Backend* backend, const EngineLimits& limits);

  HeadBudgets& budgets() { return budgets_; }
  const HeadBudgets& budgets() const { return budgets_; }
  SampleStream& samples() { return samples_; }

  // tokens: that the slot has seen.
  void Cut(const CachePlan& plan, const PageCut& cut, int slot, int32_t tokens, const KvState& kv);

  // One layer, when a slice that appends has read it, as slice.keep says.
  void CutLayer(int layer, const PrefillSlice& slice, const KvState& kv);

 private:
  Backend* backend_ = nullptr;
  EngineLimits limits_;
  HeadBudgets budgets_;
  SampleStream samples_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_COMPRESS_PAGE_CUTTER_H_
