// Accessors for tests: details of a plan's life and scorer, and of a policy's private state.
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

template <typename Life>
const Life* LifeAs(const CachePlan& plan) {
  return dynamic_cast<const Life*>(plan.life.get());
}
// The prompt is kept whole until this many tokens; 0: it is cut at its end.
inline int32_t WholeUntilOf(const CachePlan& plan) {
  const auto* life = LifeAs<WholeUntil>(plan);
  return life == nullptr ? 0 : life->tokens();
}
// Entries evicted at once; 0: one.
inline int32_t DropOf(const CachePlan& plan) {
  const auto* life = LifeAs<DropsChunks>(plan);
  return life == nullptr ? 0 : life->drop();
}
inline bool IsReported(const CachePlan& plan) { return plan.life->ReportsPrompt(); }
inline bool IsFromCandidates(const CachePlan& plan) {
  return LifeAs<FromCandidates>(plan) != nullptr;
}
inline bool IsCutUnevenly(const CachePlan& plan) {
  return WholeUntilOf(plan) > 0 && plan.life->HeadsDiffer(plan);
}
inline int32_t WidestKeep(const CachePlan& plan) { return plan.life->WidestKeep(plan); }
inline int32_t KeptOfPrompt(const CachePlan& plan, int layer) {
  return plan.life->CutLayer(plan, layer).keep;
}
// REQUIRES: a plan with min_retained_mass
inline int32_t MostForMass(const CachePlan& plan) {
  return plan.life->CutPrompt(plan, plan.prompt.num_layers)->most_for_mass;
}
inline float MinRetainedMass(const CachePlan& plan) {
  const std::optional<PageCut> cut = plan.life->CutPrompt(plan, plan.prompt.num_layers);
  return cut.has_value() ? cut->min_retained_mass : 0.0f;
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
