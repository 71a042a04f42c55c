// The kinds of requests of a simulated load, in the syntax of hydrant-load's --mix:
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
  std::string name;  // as given, without the weight
  double weight = 1.0;
  Request request = {};  // without prompt and answer length
};

// Settings are the fields of a request's cache, scheduling and SLO; other names are parameters of
// the policy. InvalidArgument names the arm.
absl::StatusOr<std::vector<Arm>> ParseMix(std::string_view text);

// Checks that each arm's policy exists and accepts its settings for this prompt shape.
// InvalidArgument names the arm.
absl::Status CheckMix(const std::vector<Arm>& mix, const PromptShape& prompt);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_MIX_H_
