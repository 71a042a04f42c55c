// Parses the cache policies of a load: "full@1,h2o:cache_ratio=0.2@3".
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_MIX_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_MIX_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "hydrant/v1/hydrant.pb.h"

namespace hydrant::load {

struct MixedArm {
  std::string name;  // as given, without the weight
  double weight = 1.0;
  v1::Cache cache;
  v1::Scheduling scheduling;
};

// Settings are fields of hydrant.v1.Cache, Scheduling and Slo by name; other names are parameters
// of the policy. InvalidArgument names the arm.
absl::StatusOr<std::vector<MixedArm>> ParseMix(std::string_view text);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_MIX_H_
