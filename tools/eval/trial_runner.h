// Runs the trials of a case under several caches: in process (Laboratory), or over a daemon
// (tools/eval/daemon/daemon_runner.h).
#ifndef HYDRANT_TOOLS_EVAL_TRIAL_RUNNER_H_
#define HYDRANT_TOOLS_EVAL_TRIAL_RUNNER_H_

#include <string>
#include <vector>

#include "tools/eval/trial.h"

namespace hydrant::eval {

class TrialRunner {
 public:
  virtual ~TrialRunner() = default;
  // The full cache's outcome first, then the arms'. An error that is not an arm's is every
  // outcome's `refused`.
  virtual std::vector<Outcome> Run(const Trial& trial, const std::vector<Arm>& arms) = 0;
  virtual std::string Description() const = 0;  // one line
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TRIAL_RUNNER_H_
