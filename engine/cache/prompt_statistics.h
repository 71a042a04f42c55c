// The statistics that attention gathers per key of a prompt for its plan: the scorer's, and that of
// retained mass. Pure functions.
#ifndef HYDRANT_ENGINE_CACHE_PROMPT_STATISTICS_H_
#define HYDRANT_ENGINE_CACHE_PROMPT_STATISTICS_H_

#include <optional>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant {

// Statistics gathered in one array: of the prefill, of its echo, or of both together; or predicted
// scores.
struct PromptStatistic {
  int place = 0;  // index in PromptLayer::statistics, or kPredictedScores
  std::optional<ColumnStatistic> reading = {}, echo = {};
  bool predicted = false;
};

// The place of the statistic by which retained mass is measured, the last queries' attention.
inline constexpr int kMassStatistic = kMaxColumnStatistics - 1;
// The place of predicted scores, PromptLayer::scores.
inline constexpr int kPredictedScores = kMaxColumnStatistics;
// Whether retained mass is measured. Samples represent other entries and have no mass of their own.
bool MeasuresMass(const CachePlan& plan);
// Whether it is measured and stored per entry in pages: the plan compacts there, and the compaction
// is not known while a layer is written.
bool MeasuresMassInPages(const CachePlan& plan);

// read: prefilled tokens, the prompt's and a probe's.
std::vector<PromptStatistic> StatisticsOf(const CachePlan& plan, int read);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PROMPT_STATISTICS_H_
