// Sends a load and collects its outcomes. Single threaded.
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
  // Send time of request i, or of the first request of conversation i, in seconds; ascending. Null:
  // a closed loop, which sends whenever one of `concurrency` places is free. Later turns are sent
  // after the previous answer and the think time.
  std::function<double(int64_t)> intended = {};
  // Maximum requests in flight. A conversation keeps its place until its last turn has ended.
  int64_t concurrency = std::numeric_limits<int64_t>::max();
  double most_seconds = std::numeric_limits<double>::infinity();  // no request is sent after that
  bool keep_token_ids = false;
  // Called about every `tick` seconds with all outcomes so far and the number in flight; false
  // aborts the run: requests in flight are cancelled and count as unfinished.
  double tick = 0.25;
  std::function<bool(double now, const std::vector<Outcome>& outcomes, int64_t in_flight)> on_tick =
      {};
};

// One outcome per request sent, in order of sending. A turn that does not complete ends its
// conversation.
std::vector<Outcome> RunLoad(const Workload& workload, const RunOptions& options, Target* target);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_RUNNER_H_
