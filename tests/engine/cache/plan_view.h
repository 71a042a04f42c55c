// Accessors for tests: details of a plan's schedule and scorer, and of a policy's private state.
#ifndef HYDRANT_TESTS_ENGINE_CACHE_PLAN_VIEW_H_
#define HYDRANT_TESTS_ENGINE_CACHE_PLAN_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "engine/cache/cache_plan.h"
#include "engine/cache/policies/probe_score.h"
#include "engine/cache/policies/snapkv.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {

template <typename Schedule>
const Schedule* RetentionAs(const CachePlan& plan) {
  return dynamic_cast<const Schedule*>(plan.retention.get());
}
// The prompt is kept whole until this many tokens; 0: it is compacted at its end.
inline int32_t DelayedUntil(const CachePlan& plan) {
  const auto* schedule = RetentionAs<DelayedCompaction>(plan);
  return schedule == nullptr ? 0 : schedule->tokens();
}
// Entries evicted at once; 0: one.
inline int32_t DropOf(const CachePlan& plan) {
  const auto* schedule = RetentionAs<ChunkedEviction>(plan);
  return schedule == nullptr ? 0 : schedule->drop();
}
inline bool IsReported(const CachePlan& plan) { return plan.retention->ReportsPrompt(); }
inline bool HasCandidates(const CachePlan& plan) {
  return RetentionAs<CandidateRetention>(plan) != nullptr;
}
inline bool IsCompactedUnevenly(const CachePlan& plan) {
  return DelayedUntil(plan) > 0 && plan.retention->HeadsDiffer(plan);
}
inline int32_t MaxKeep(const CachePlan& plan) { return plan.retention->MaxKeep(plan); }
inline int32_t KeptOfPrompt(const CachePlan& plan, int layer) {
  return plan.retention->CompactLayer(plan, layer).keep;
}
// REQUIRES: a plan with min_retained_mass
inline int32_t MaxForMass(const CachePlan& plan) {
  return plan.retention->PromptCompaction(plan, plan.prompt.num_layers)->max_for_mass;
}
inline float MinRetainedMass(const CachePlan& plan) {
  const std::optional<PageCompaction> compaction =
      plan.retention->PromptCompaction(plan, plan.prompt.num_layers);
  return compaction.has_value() ? compaction->min_retained_mass : 0.0f;
}

template <typename Scorer>
const Scorer* ScorerAs(const CachePlan& plan) {
  return dynamic_cast<const Scorer*>(plan.scorer.get());
}
inline int32_t WindowOf(const CachePlan& plan) { return ScorerAs<WindowScorer>(plan)->queries(); }
inline ProbeWeights ProbeOf(const CachePlan& plan) {
  return ScorerAs<ProbeScorer>(plan)->weights();
}

// The value of a name in the policy's report, as text; empty if it is missing.
inline std::string Reported(const PolicyReport& report, const std::string& name) {
  for (const auto& [of, value] : report.values) {
    if (of == name && std::holds_alternative<std::string>(value))
      return std::get<std::string>(value);
  }
  return "";
}
inline std::optional<double> ReportedNumber(const PolicyReport& report, const std::string& name) {
  for (const auto& [of, value] : report.values) {
    if (of == name && std::holds_alternative<double>(value)) return std::get<double>(value);
  }
  return std::nullopt;
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_CACHE_PLAN_VIEW_H_
