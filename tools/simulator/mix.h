// The kinds of requests that a simulated load mixes, as hydrant-load's --mix names them:
// "full@1,h2o:cache_ratio=0.2:tenant=b@3".
#ifndef HYDRANT_TOOLS_SIMULATOR_MIX_H_
#define HYDRANT_TOOLS_SIMULATOR_MIX_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_spec.h"
#include "scheduler/request.h"

namespace hydrant::sim {

struct Arm {
  std::string name;  // as it was written, without the weight
  double weight = 1.0;
  Request request = {};  // all but its prompt and the length of its answer
};

// Settings are those that travel as fields of a request's cache, scheduling and SLO; any other name
// is a parameter of the policy. InvalidArgument names the arm.
absl::StatusOr<std::vector<Arm>> ParseMix(std::string_view text);

// Checks that each arm's policy exists and accepts its settings, for a prompt of that shape.
// InvalidArgument names the arm.
absl::Status CheckMix(const std::vector<Arm>& mix, const PromptShape& prompt);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_MIX_H_
