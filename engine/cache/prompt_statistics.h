// What attention gathers of a prompt for its plan: the scorer's statistics, and retained mass's.
// Pure functions.
#ifndef HYDRANT_ENGINE_CACHE_PROMPT_STATISTICS_H_
#define HYDRANT_ENGINE_CACHE_PROMPT_STATISTICS_H_

#include <optional>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant {

// What is gathered in one place, of the reading, of its echo, or of both together.
struct PromptStatistic {
  int place = 0;  // which of PromptLayer::statistics
  std::optional<ColumnStatistic> reading = {}, echo = {};
};

// The place of the attention of the last queries, by which retained mass is measured.
inline constexpr int kMassStatistic = kMaxColumnStatistics - 1;
// Whether that is measured. Samples stand for entries: no mass is theirs alone.
bool MeasuresMass(const CachePlan& plan);
// And of entries in pages, beside which it is kept: what is cut there is not known while a layer is
// written.
bool MeasuresMassInPages(const CachePlan& plan);

// Where `read` tokens are read, the prompt's and a probe's.
std::vector<PromptStatistic> StatisticsOf(const CachePlan& plan, int read);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PROMPT_STATISTICS_H_
