#include "engine/compress/page_budget.h"

#include <algorithm>
#include <vector>

namespace hydrant {

absl::Status PageBudget::Allocate(Backend* backend, const EngineLimits& limits) {
  backend_ = backend;
  limits_ = limits;
  return keep_.Allocate(*backend, static_cast<size_t>(limits.num_layers) * limits.num_kv_heads);
}

void PageBudget::Set(int layer_begin, int layer_end, int32_t keep) {
  const size_t heads = limits_.num_kv_heads;
  keep_.Write(*backend_, layer_begin * heads,
              std::vector<int32_t>((layer_end - layer_begin) * heads, keep));
}

void PageBudget::Share(const CachePlan& plan, const SlotPages& cache) {
  if (plan.scope == BudgetScope::kModel) return ShareLayers(0, limits_.num_layers, plan, cache);
  for (int layer = 0; layer < limits_.num_layers; ++layer) {
    if (plan.scope == BudgetScope::kLayer) {
      ShareLayers(layer, layer + 1, plan, cache);
    } else {
      Set(layer, layer + 1, plan.KeptOfPrompt(layer));
    }
  }
}

void PageBudget::ShareLayers(int layer_begin, int layer_end, const CachePlan& plan,
                             const SlotPages& cache) {
  const int heads = (layer_end - layer_begin) * limits_.num_kv_heads;
  // A layer of fewer tokens than its budget keeps them all.
  const int32_t base =
      std::min<int32_t>(plan.LayerBudget(layer_begin), cache.tokens) - plan.Protected();
  backend_->CountBest({.slot = cache.slot,
                       .layer_begin = layer_begin,
                       .layer_end = layer_end,
                       .total = int64_t{heads} * base,
                       .sinks = plan.rule.sinks,
                       .recent = plan.rule.recent,
                       .next_position = cache.tokens,
                       .max_length = cache.max_length,
                       .pages = cache.pages,
                       .tables = cache.tables,
                       .counts = keep(layer_begin)});
  backend_->ShareBudget({.best = keep(layer_begin),
                         .heads = heads,
                         .base = base,
                         .floor_ppm = plan.floor_ppm,
                         .guarded = plan.Protected(),
                         .keep = keep(layer_begin)});
}

void PageBudget::RaiseForMass(const CachePlan& plan, const SlotPages& cache) {
  if (plan.min_retained_mass <= 0.0f) return;
  backend_->KeepForMass({.slot = cache.slot,
                         .queries = plan.MassQueries(),
                         .min_mass = plan.min_retained_mass,
                         .most = plan.most_for_mass,
                         .sinks = plan.rule.sinks,
                         .recent = plan.rule.recent,
                         .next_position = cache.tokens,
                         .max_length = cache.max_length,
                         .pages = cache.pages,
                         .tables = cache.tables,
                         .keep = keep(0)});
}

void PageBudget::Compact(const CachePlan& plan, const SlotPages& cache, int32_t growth) {
  for (int layer = 0; layer < limits_.num_layers; ++layer) {
    backend_->Compact({.keep = keep(layer),
                       .growth = growth == kNoCap ? -1 : growth,
                       .sinks = plan.rule.sinks,
                       .recent = plan.rule.recent,
                       .next_position = cache.tokens,
                       .max_length = cache.max_length,
                       .slot = cache.slot,
                       .layer = layer,
                       .pages = cache.pages,
                       .tables = cache.tables});
  }
}

}  // namespace hydrant
