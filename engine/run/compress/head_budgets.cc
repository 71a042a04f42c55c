#include "engine/run/compress/head_budgets.h"

#include <algorithm>
#include <vector>

namespace hydrant {

absl::Status HeadBudgets::Allocate(Backend* backend, const EngineLimits& limits) {
  backend_ = backend;
  limits_ = limits;
  int heads = 0;
  for (const CacheGroup& group : limits.Groups()) heads = std::max(heads, group.NumHeads());
  return keep_.Allocate(*backend, heads);
}

void HeadBudgets::Set(int layer, std::span<const int32_t> keep) {
  keep_.Write(*backend_, static_cast<size_t>(layer) * limits_.num_kv_heads, keep);
}

void HeadBudgets::SetEqually(int layer, int32_t keep) {
  Set(layer, std::vector<int32_t>(limits_.num_kv_heads, keep));
}

void HeadBudgets::Share(const CachePlan& plan, int layer, int heads, int32_t base, int32_t counted,
                        bool others_follow) {
  backend_->ShareBudget({.best = keep(layer),
                         .counted = counted,
                         .heads = heads,
                         .base = base,
                         .floor_ppm = plan.share.floor_ppm,
                         .guarded = plan.Protected(),
                         .others_follow = others_follow,
                         .keep = keep(layer)});
}

void HeadBudgets::ShareLayer(const PromptLayer& layer, const float* scores, int32_t layer_budget) {
  const CachePlan& plan = *layer.plan;
  backend_->Select({.scores = scores,
                    .score_stride = layer.stride,
                    .num_kv_heads = layer.num_kv_heads,
                    .n = layer.n,
                    .sinks = plan.rule.sinks,
                    .recent = plan.rule.recent,
                    .kept = layer.kept,
                    .kept_stride = layer.stride,
                    .counts = keep(layer.layer),
                    .total = layer.num_kv_heads * layer_budget});
  Share(plan, layer.layer, layer.num_kv_heads, layer_budget - plan.Protected(), plan.Protected());
}

void HeadBudgets::AssignPages(const PromptLayer& layer, const KvState& kv) {
  const int block_size = kv.pages().layout.block_size;
  if (layer.plan->retention->UnassignedPages(*layer.plan, block_size) == 0) return;
  backend_->AssignPages({.keep = keep(layer.layer),
                         .block_size = block_size,
                         .slot = layer.slot,
                         .layer = layer.layer,
                         .num_heads = limits_.num_layers * limits_.num_kv_heads,
                         .tables = kv.tables(),
                         .blocks = kv.blocks()});
}

void HeadBudgets::ReturnPages(int slot, int layers, const KvState& kv) {
  backend_->ReturnPages({.keep = keep(0),
                         .block_size = kv.pages().layout.block_size,
                         .slot = slot,
                         .layer_end = layers,
                         .num_heads = limits_.num_layers * limits_.num_kv_heads,
                         .tables = kv.tables(),
                         .blocks = kv.blocks()});
}

void HeadBudgets::SharePages(const CachePlan& plan, const PageCompaction& compaction, int slot,
                             int32_t tokens, const KvState& kv) {
  if (!compaction.keep_of_heads.empty()) return Set(0, compaction.keep_of_heads);
  if (compaction.share.scope == BudgetScope::kModel) {
    ShareLayersOfPages(plan, compaction, slot, tokens, 0, compaction.NumLayers(), kv);
  } else {
    for (int layer = 0; layer < limits_.BudgetLayers(); ++layer) {
      if (compaction.share.scope == BudgetScope::kLayer) {
        ShareLayersOfPages(plan, compaction, slot, tokens, layer, layer + 1, kv);
      } else {
        SetEqually(layer, compaction.keep[layer]);
      }
    }
  }
  if (compaction.min_retained_mass <= 0.0f) return;
  backend_->KeepForMass({.slot = slot,
                         .queries = plan.MassQueries(),
                         .min_mass = compaction.min_retained_mass,
                         .most = compaction.max_for_mass,
                         .sinks = plan.rule.sinks,
                         .recent = plan.rule.recent,
                         .next_position = tokens,
                         .max_length = compaction.max_length,
                         .pages = kv.pages(),
                         .tables = kv.tables(),
                         .keep = keep(0)});
}

void HeadBudgets::ShareLayersOfPages(const CachePlan& plan, const PageCompaction& compaction,
                                     int slot, int32_t tokens, int layer_begin, int layer_end,
                                     const KvState& kv) {
  const int heads = (layer_end - layer_begin) * limits_.num_kv_heads;
  const int32_t base = compaction.keep[layer_begin] - plan.Protected();
  // If more layers follow, the total over all layers.
  const int sharing = compaction.IsPartial() ? limits_.BudgetHeads() : heads;
  backend_->CountBest({.slot = slot,
                       .layer_begin = layer_begin,
                       .layer_end = layer_end,
                       .total = int64_t{sharing} * base,
                       .sinks = plan.rule.sinks,
                       .recent = plan.rule.recent,
                       .next_position = tokens,
                       .max_length = compaction.max_length,
                       .pages = kv.pages(),
                       .tables = kv.tables(),
                       .counts = keep(layer_begin)});
  Share(plan, layer_begin, heads, base, 0, compaction.IsPartial());
}

}  // namespace hydrant
