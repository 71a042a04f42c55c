#include "engine/run/compress/page_cutter.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/status_macros.h"

namespace hydrant {

absl::Status PageCutter::Allocate(Backend* backend, const EngineLimits& limits) {
  backend_ = backend;
  limits_ = limits;
  HYDRANT_RETURN_IF_ERROR(budgets_.Allocate(backend, limits));
  return samples_.Allocate(backend, limits);
}

void PageCutter::Cut(const CachePlan& plan, const PageCut& cut, int slot, int32_t tokens,
                     const KvState& kv) {
  const SequenceTables& tables = kv.tables();
  if (cut.samples != nullptr) {
    const std::vector<int32_t> caps(static_cast<size_t>(limits_.BudgetHeads()), plan.cap);
    backend_->CopyToDevice(tables.caps + tables.HeadIndex(slot, 0, 0), caps.data(),
                           caps.size() * sizeof(int32_t));
    samples_.BuildPages(*cut.samples, slot, tokens, kv);
    return;
  }
  budgets_.SharePages(plan, cut, slot, tokens, kv);
  if (cut.OthersFollow()) budgets_.ReturnPages(slot, cut.NumLayers(), kv);
  for (int layer = 0; layer < cut.NumLayers(); ++layer) {
    backend_->Compact({.keep = budgets_.keep(layer),
                       .growth = cut.growth == kNoCap ? -1 : cut.growth,
                       .sinks = plan.rule.sinks,
                       .recent = plan.rule.recent,
                       .next_position = tokens,
                       .max_length = cut.max_length,
                       .slot = slot,
                       .layer = layer,
                       .pages = kv.budget().PagesOf(slot),
                       .tables = tables});
  }
}

void PageCutter::CutLayer(int layer, const TokenRun& run, const KvState& kv) {
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
