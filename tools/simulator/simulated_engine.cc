#include "tools/simulator/simulated_engine.h"

#include <algorithm>
#include <utility>

#include "engine/cache/prompt_scorer.h"

namespace hydrant::sim {
namespace {

// The sampled token: never an end of text, so answers have maximum length.
constexpr TokenId kToken = 0;
// For heads that share a budget, the maximum relative deviation from the equal part.
constexpr double kSpread = 0.6;
// For heads with a retained-mass guarantee, the fraction that keeps its whole prompt.
constexpr double kWhole = 0.2;

}  // namespace

SimulatedEngine::SimulatedEngine(const EngineLimits& limits, uint64_t seed)
    : limits_(limits), random_(seed), plans_(limits.max_num_seqs) {}

void SimulatedEngine::UpdatePlans(const Batch& batch, StepResult* result) {
  batch.Visit([&](const SlotPlan& decision) { plans_[decision.slot] = decision.plan; },
              [&](const SlotSetup& setup) { plans_[setup.slot] = setup.plan; },
              [&](const SlotCompaction& compaction) {
                result->compaction_reports.push_back(Compact(compaction));
              },
              [](const auto&) {});
}

CacheReport SimulatedEngine::Compact(const SlotCompaction& compaction) {
  CachePlan& plan = plans_[compaction.slot];
  if (compaction.plan.has_value()) plan = *compaction.plan;
  CacheReport report;
  if (plan.retention->HeadsDiffer(plan))
    report.entries = ShareOut(plan, plan.MaxShare(compaction.tokens));
  return report;
}

void SimulatedEngine::Enqueue(const Batch& batch) {
  StepResult& result = results_.emplace_back();
  UpdatePlans(batch, &result);
  result.tokens.assign(batch.sampled.size(), kToken);
  for (const TokenRun& run : batch.InArena()) {
    const bool ends = run.Ends(limits_.num_layers);
    for (const int slot : run.Slots())
      result.prompt_reports.push_back(ends ? ReportPrompt(run, slot) : CacheReport());
  }
  result.embeddings.resize(batch.runs.size());
}

absl::Status SimulatedEngine::Collect(StepResult* result) {
  *result = std::move(results_.front());
  results_.pop_front();
  return absl::OkStatus();
}

CacheReport SimulatedEngine::ReportPrompt(const TokenRun& run, int slot) {
  CacheReport report;
  const CachePlan& plan = plans_[slot];
  if (run.CompactsTurn()) report.entries.assign(run.turn->keep.begin(), run.turn->keep.end());
  if (!run.BuildsCache()) return report;
  report.observations.resize(static_cast<size_t>(plan.scorer->NumObservations(plan)) *
                             static_cast<size_t>(NumHeads()));
  for (float& observation : report.observations) observation = static_cast<float>(Draw());
  if (!plan.Compresses() || !plan.retention->ReportsPrompt()) return report;
  report.entries = ShareOut(plan, plan.retention->MaxKeep(plan));
  const std::optional<PageCompaction> compaction =
      plan.retention->PromptCompaction(plan, plan.prompt.num_layers);
  if (!compaction.has_value() || compaction->min_retained_mass <= 0) return report;
  for (int32_t& entries : report.entries) {
    if (Draw() < kWhole)
      entries =
          static_cast<int32_t>(std::min<int64_t>(plan.prompt.tokens, compaction->max_for_mass));
  }
  return report;
}

// Distributes the plan's total budget, between the protected entries and `widest` per head.
std::vector<int32_t> SimulatedEngine::ShareOut(const CachePlan& plan, int32_t widest) {
  std::vector<int32_t> entries(NumHeads());
  const int sharing = plan.share.scope == BudgetScope::kModel ? NumHeads() : limits_.num_kv_heads;
  for (int first = 0; first < NumHeads(); first += sharing) {
    int64_t left = int64_t{sharing} * plan.LayerBudget(first / limits_.num_kv_heads);
    for (int head = first; head < first + sharing; ++head) {
      const int64_t others = first + sharing - head - 1;
      const int64_t most = std::min<int64_t>(left - others * plan.Protected(), widest);
      const int64_t least = std::max<int64_t>(plan.Protected(), left - others * widest);
      const double equal = static_cast<double>(left) / static_cast<double>(others + 1);
      const auto drawn = static_cast<int64_t>(equal * (1 + kSpread * (2 * Draw() - 1)));
      entries[head] = static_cast<int32_t>(std::max(std::min(drawn, most), std::min(least, most)));
      left -= entries[head];
    }
  }
  return entries;
}

}  // namespace hydrant::sim
