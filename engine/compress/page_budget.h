// How many of its entries each head of a slot is to keep, and the cut that leaves it those: what is
// decided from the scores in a slot's pages, when the last layer of a prompt has been written or
// when a cache that was whole for a while shrinks.
#ifndef HYDRANT_ENGINE_COMPRESS_PAGE_BUDGET_H_
#define HYDRANT_ENGINE_COMPRESS_PAGE_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/step/batch.h"
#include "kernels/backend.h"
#include "kernels/device_array.h"

namespace hydrant {

// The entries of a slot, at the moment they are counted.
struct SlotPages {
  int slot = 0;
  int32_t tokens = 0;      // seen so far
  int32_t max_length = 0;  // no head holds more entries
  KvPages pages;
  SequenceTables tables;
};

class PageBudget {
 public:
  // Borrows the backend.
  absl::Status Allocate(Backend* backend, const EngineLimits& limits);

  int32_t* keep(int layer) const {
    return keep_.data() + static_cast<size_t>(layer) * limits_.num_kv_heads;
  }
  // Every head of the layers keeps as many.
  void Set(int layer_begin, int layer_end, int32_t keep);
  // keep of all layers, which share the plan's budgets within its scope, a layer's or the model's,
  // by where the best entries are (kernels/ops/count_best.h, share_budget.h); a head's own, of a
  // prompt.
  void Share(const CachePlan& plan, const SlotPages& cache);
  // Heads keep more, where they would retain less of a prompt than the plan says.
  void RaiseForMass(const CachePlan& plan, const SlotPages& cache);
  // Heads keep the best of their entries, and may take up `growth` more; kNoCap: any number, below
  // 0: what their caps allow already (kernels/ops/compact.h).
  void Compact(const CachePlan& plan, const SlotPages& cache, int32_t growth);

 private:
  void ShareLayers(int layer_begin, int layer_end, const CachePlan& plan, const SlotPages& cache);

  Backend* backend_ = nullptr;
  EngineLimits limits_;
  DeviceArray<int32_t> keep_;  // [layers, kv_heads]
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_COMPRESS_PAGE_BUDGET_H_
