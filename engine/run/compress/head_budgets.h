// The Budget step: how many entries each head keeps. Heads that share a budget are given it by
// where the best of their entries are, of a prompt's layer by its scores, later by those in the
// slot's pages; the rule is one (kernels/ops/share_budget.h). Used by the engine's thread.
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

  // [num_kv_heads] of the layer, of the group at work; on the device.
  int32_t* keep(int layer) const {
    return keep_.data() + static_cast<size_t>(layer) * limits_.num_kv_heads;
  }
  // What the heads of the layers keep, [layers, kv_heads], or those of one layer.
  void Set(int layer, std::span<const int32_t> keep);
  // The layer's heads keep as many each.
  void SetAlike(int layer, int32_t keep);
  // The heads of a prompt's layer share layer_budget entries a head, by [num_kv_heads, n] scores.
  void ShareLayer(const PromptLayer& layer, const float* scores, int32_t layer_budget);
  // The layer's heads get the pages of what they keep, where the slot has some that are unassigned.
  void AssignPages(const PromptLayer& layer, const KvState& kv);
  // What the heads of the first layers do not keep goes back to those.
  void ReturnPages(int slot, int layers, const KvState& kv);
  // All heads of the slot, by what is in its pages when `tokens` have been seen.
  void SharePages(const CachePlan& plan, const PageCut& cut, int slot, int32_t tokens,
                  const KvState& kv);

 private:
  // Heads share base + guarded entries each. `best` of ShareBudgetArgs is in keep(layer) already.
  void Share(const CachePlan& plan, int layer, int heads, int32_t base, int32_t counted,
             bool others_follow = false);
  void ShareLayersOfPages(const CachePlan& plan, const PageCut& cut, int slot, int32_t tokens,
                          int layer_begin, int layer_end, const KvState& kv);

  Backend* backend_ = nullptr;
  EngineLimits limits_;
  DeviceArray<int32_t> keep_;  // [layers, kv_heads] of the largest group
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_COMPRESS_HEAD_BUDGETS_H_
