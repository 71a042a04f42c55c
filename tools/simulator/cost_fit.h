// Fits a cost model to a machine: least squares of the relative errors over the steps traced by a
// daemon (hydrantd --trace-steps FILE, server/observe/step_trace.h).
#ifndef HYDRANT_TOOLS_SIMULATOR_COST_FIT_H_
#define HYDRANT_TOOLS_SIMULATOR_COST_FIT_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/step_time_model.h"
#include "tools/simulator/cost_model.h"

namespace hydrant::sim {

// InvalidArgument names the file and the line, or the missing field. A truncated file is read up to
// its last whole line.
absl::StatusOr<std::vector<StepTaken>> ParseStepTrace(std::string_view text,
                                                      const std::string& name);
absl::StatusOr<std::vector<StepTaken>> ReadStepTrace(const std::string& path);

struct CostFit {
  CostModel model = {};
  size_t num_steps = 0;
  double relative_error = 0;  // the mean of |predicted / taken - 1|
};
// Steps slower than twice the prediction (disturbed by other programs) get less weight; yet the sum
// of all predictions equals the measured total. InvalidArgument if there are too few steps.
absl::StatusOr<CostFit> FitCostModel(std::span<const StepTaken> steps);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_COST_FIT_H_
