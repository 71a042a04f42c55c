// Sends a load and gathers what becomes of it. One thread.
#ifndef HYDRANT_TOOLS_LOAD_RUN_RUNNER_H_
#define HYDRANT_TOOLS_LOAD_RUN_RUNNER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "tools/load/run/outcome.h"
#include "tools/load/run/target.h"
#include "tools/load/run/workload.h"

namespace hydrant::load {

struct RunOptions {
  // When request i, or the first one of conversation i, is to be sent, in seconds; ascending. Null:
  // a closed loop, in which each is sent as soon as one of `concurrency` places is free. Later
  // turns are sent when the answer before has ended and the think time is over.
  std::function<double(int64_t)> intended = {};
  // Requests in flight at most. A conversation keeps its place until its last turn has ended.
  int64_t concurrency = std::numeric_limits<int64_t>::max();
  double most_seconds = std::numeric_limits<double>::infinity();  // nothing is sent after that
  bool keep_token_ids = false;
  // Called about every `tick` seconds with all outcomes so far and how many are in flight; false
  // breaks the run off: what is in flight is cancelled, and counts as unfinished.
  double tick = 0.25;
  std::function<bool(double now, const std::vector<Outcome>& outcomes, int64_t in_flight)> on_tick =
      {};
};

// An outcome of every request that was sent, in the order of sending. A conversation ends with a
// turn that does not complete.
std::vector<Outcome> RunLoad(const Workload& workload, const RunOptions& options, Target* target);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_RUNNER_H_
