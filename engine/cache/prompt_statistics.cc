#include "engine/cache/prompt_statistics.h"

#include <algorithm>

#include "engine/cache/prompt_scorer.h"

namespace hydrant {

bool MeasuresMass(const CachePlan& plan) {
  return plan.measures_mass && plan.Compresses() && !plan.rule.weighted;
}

bool MeasuresMassInPages(const CachePlan& plan) {
  return MeasuresMass(plan) &&
         plan.retention->PromptCompaction(plan, plan.prompt.num_layers).has_value();
}

std::vector<PromptStatistic> StatisticsOf(const CachePlan& plan, int read) {
  const std::vector<ColumnStatistic> reading = plan.scorer->Statistics(plan, read);
  const std::vector<ColumnStatistic> echo = plan.scorer->Echo(plan);
  std::vector<PromptStatistic> all(std::max(reading.size(), echo.size()));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].place = static_cast<int>(i);
    if (i < reading.size()) all[i].reading = reading[i];
    if (i < echo.size()) all[i].echo = echo[i];
  }
  if (plan.scorer->Predicts()) all.push_back({.place = kPredictedScores, .predicted = true});
  if (!MeasuresMass(plan)) return all;
  PromptStatistic mass = {.place = kMassStatistic};
  const auto n = static_cast<int32_t>(plan.prompt.tokens);
  if (plan.scorer->MeasuresMassByEcho()) {
    mass.echo = ColumnStatistic();  // over all its queries
  } else {
    mass.reading = {.first_query = n - plan.MassQueries(), .end_query = n};
  }
  all.push_back(mass);
  return all;
}

}  // namespace hydrant
