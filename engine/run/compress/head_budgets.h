// The Budget step: how many entries each head keeps. A shared budget is split by the number of best
// entries in each head: by the scores of a prompt's layer, later by the scores in the slot's pages,
// with one formula (kernels/ops/share_budget.h). Used by the engine's thread.
#ifndef HYDRANT_ENGINE_RUN_COMPRESS_HEAD_BUDGETS_H_
#define HYDRANT_ENGINE_RUN_COMPRESS_HEAD_BUDGETS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/prompt_scorer.h"
#include "engine/run/pool/kv_state.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

class HeadBudgets {
 public:
  // Borrows the backend.
  absl::Status Allocate(Backend* backend, const EngineLimits& limits);

  // [num_kv_heads] entries that each head of a layer keeps, in the current group; on the device.
  int32_t* keep(int layer) const {
    return keep_.data() + static_cast<size_t>(layer) * limits_.num_kv_heads;
  }
  // Sets `keep` from `layer` on. keep: [layers, kv_heads], of one or more layers.
  void Set(int layer, std::span<const int32_t> keep);
  // Sets the same number for all heads of the layer.
  void SetEqually(int layer, int32_t keep);
  // Shares a budget of layer_budget entries per head over the heads of a prompt's layer. scores:
  // [num_kv_heads, n].
  void ShareLayer(const PromptLayer& layer, const float* scores, int32_t layer_budget);
  // Assigns pages for the kept entries to the layer's heads, if the slot has unassigned pages.
  void AssignPages(const PromptLayer& layer, const KvState& kv);
  // Returns pages that the heads of the first `layers` layers do not keep to the unassigned ones.
  void ReturnPages(int slot, int layers, const KvState& kv);
  // Sets all heads of the slot by the entries in its pages, after `tokens` tokens.
  void SharePages(const CachePlan& plan, const PageCompaction& compaction, int slot, int32_t tokens,
                  const KvState& kv);

 private:
  // Heads share base + guarded entries each. REQUIRES: keep(layer) holds ShareBudgetArgs::best
  void Share(const CachePlan& plan, int layer, int heads, int32_t base, int32_t counted,
             bool others_follow = false);
  void ShareLayersOfPages(const CachePlan& plan, const PageCompaction& compaction, int slot,
                          int32_t tokens, int layer_begin, int layer_end, const KvState& kv);

  Backend* backend_ = nullptr;
  EngineLimits limits_;
  DeviceArray<int32_t> keep_;  // [layers, kv_heads] of the largest group
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_COMPRESS_HEAD_BUDGETS_H_
