// A cost model from a machine: the least squares of the relative errors over the steps that a
// daemon has written (hydrantd --trace-steps FILE, server/observe/step_trace.h).
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

// InvalidArgument names the file and the line, or what it lacks. A file that breaks off is read as
// far as it goes.
absl::StatusOr<std::vector<StepTaken>> ParseStepTrace(std::string_view text,
                                                      const std::string& name);
absl::StatusOr<std::vector<StepTaken>> ReadStepTrace(const std::string& path);

struct CostFit {
  CostModel model = {};
  size_t num_steps = 0;
  double relative_error = 0;  // the mean of |predicted / taken - 1|
};
// A step that took more than twice what it should have, because something else ran on the machine,
// counts less; yet all times together add up to what was taken. InvalidArgument where the steps are
// too few.
absl::StatusOr<CostFit> FitCostModel(std::span<const StepTaken> steps);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_COST_FIT_H_
