#include "engine/run/compress/page_compactor.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/status_macros.h"

namespace hydrant {

absl::Status PageCompactor::Allocate(Backend* backend, const EngineLimits& limits) {
  backend_ = backend;
  limits_ = limits;
  HYDRANT_RETURN_IF_ERROR(budgets_.Allocate(backend, limits));
  return samples_.Allocate(backend, limits);
}

void PageCompactor::Compact(const CachePlan& plan, const PageCompaction& compaction, int slot,
                            int32_t tokens, const KvState& kv) {
  const SequenceTables& tables = kv.tables();
  if (compaction.samples != nullptr) {
    const std::vector<int32_t> caps(static_cast<size_t>(limits_.BudgetHeads()), plan.cap);
    backend_->CopyToDevice(tables.caps + tables.HeadIndex(slot, 0, 0), caps.data(),
                           caps.size() * sizeof(int32_t));
    samples_.BuildPages(*compaction.samples, slot, tokens, kv);
    return;
  }
  budgets_.SharePages(plan, compaction, slot, tokens, kv);
  if (compaction.IsPartial()) budgets_.ReturnPages(slot, compaction.NumLayers(), kv);
  for (int layer = 0; layer < compaction.NumLayers(); ++layer) {
    backend_->Compact({.keep = budgets_.keep(layer),
                       .growth = compaction.growth == kNoCap ? -1 : compaction.growth,
                       .sinks = plan.rule.sinks,
                       .recent = plan.rule.recent,
                       .next_position = tokens,
                       .max_length = compaction.max_length,
                       .slot = slot,
                       .layer = layer,
                       .pages = kv.budget().PagesOf(slot),
                       .tables = tables});
  }
}

void PageCompactor::CompactLayer(int layer, const TokenRun& run, const KvState& kv) {
  const CachePlan& plan = kv.plan(run.slot);
  const auto n = static_cast<int32_t>(run.tokens.size());
  const size_t heads = limits_.num_kv_heads;
  budgets_.Set(layer, std::span(run.keep).subspan(layer * heads, heads));
  backend_->Compact({.keep = budgets_.keep(layer),
                     .sinks = plan.rule.sinks,
                     .recent = std::min(plan.rule.recent, n),
                     .next_position = run.first_position + n,
                     .max_length = plan.EntriesAfter(run.first_position + n),
                     .slot = run.slot,
                     .layer = layer,
                     .pages = kv.budget().PagesOf(run.slot),
                     .tables = kv.tables()});
}

}  // namespace hydrant
