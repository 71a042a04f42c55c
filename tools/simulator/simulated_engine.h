// An engine without computation: it answers steps with tokens and with the reports that plans need,
// and touches no page. Ragged head sizes are drawn from a seed. A step costs time in proportion to
// its rows. One thread.
#ifndef HYDRANT_TOOLS_SIMULATOR_SIMULATED_ENGINE_H_
#define HYDRANT_TOOLS_SIMULATOR_SIMULATED_ENGINE_H_

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "engine/run/step/batch.h"

namespace hydrant::sim {

class SimulatedEngine final : public StepExecutor {
 public:
  SimulatedEngine(const EngineLimits& limits, uint64_t seed);

  const EngineLimits& limits() const override { return limits_; }
  void Enqueue(const Batch& batch) override;
  absl::Status Collect(StepResult* result) override;

 private:
  CacheReport Compact(const SlotCompaction& compaction);
  void UpdatePlans(const Batch& batch, StepResult* result);
  CacheReport ReportPrompt(const TokenRun& run, int slot);
  std::vector<int32_t> ShareOut(const CachePlan& plan, int32_t widest);
  double Draw() { return std::uniform_real_distribution<double>(0.0, 1.0)(random_); }
  int NumHeads() const { return limits_.BudgetHeads(); }

  const EngineLimits limits_;
  std::mt19937_64 random_;
  std::vector<CachePlan> plans_;  // [slots]
  std::deque<StepResult> results_;
};

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_SIMULATED_ENGINE_H_
