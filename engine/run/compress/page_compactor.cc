#include "engine/run/compress/page_compactor.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/status_macros.h"

namespace hydrant {
namespace {

int32_t MeanOf(std::span<const int32_t> keep) {
  const int64_t sum = std::accumulate(keep.begin(), keep.end(), int64_t{0});
  return static_cast<int32_t>(sum / static_cast<int64_t>(keep.size()));
}

// [layers] the mean of the heads that share, rounded down. keep: [layers, kv_heads].
std::vector<int32_t> MeansOver(BudgetScope scope, std::span<const int32_t> keep, int kv_heads) {
  std::vector<int32_t> means;
  for (size_t layer = 0; layer * kv_heads < keep.size(); ++layer) {
    means.push_back(
        MeanOf(scope == BudgetScope::kModel ? keep : keep.subspan(layer * kv_heads, kv_heads)));
  }
  return means;
}

}  // namespace

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

void PageCompactor::CompactTurn(const TokenRun& run, const KvState& kv) {
  if (!run.CompactsTurn()) return;
  CachePlan plan = kv.plan(run.slot);
  plan.rule.recent = std::min(plan.rule.recent, run.NumTokens());
  plan.share.floor_ppm = 0;  // a head that was cut before may hold less than a floor
  const int32_t tokens = run.first_position + run.NumTokens();
  PageCompaction compaction;
  compaction.share = plan.share;
  compaction.max_length = plan.EntriesAfter(tokens);
  const std::span<const int32_t> keep = run.turn->keep;
  if (plan.share.scope == BudgetScope::kHead) {
    compaction.keep.resize(limits_.BudgetLayers());
    compaction.keep_of_heads.assign(keep.begin(), keep.end());
  } else {
    compaction.keep = MeansOver(plan.share.scope, keep, limits_.num_kv_heads);
  }
  Compact(plan, compaction, run.slot, tokens, kv);
}

}  // namespace hydrant
