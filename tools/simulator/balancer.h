// Which of many replicas a request goes to. A balancer knows what it has sent and what has ended,
// and nothing else of the replicas. One thread.
#ifndef HYDRANT_TOOLS_SIMULATOR_BALANCER_H_
#define HYDRANT_TOOLS_SIMULATOR_BALANCER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant::sim {

// Of a replica: the tokens, of prompts and of answers at their longest, of the requests that were
// sent there and have not ended.
using OutstandingTokens = int64_t;

class Balancer {
 public:
  virtual ~Balancer() = default;
  // The index of a replica. loads: [replicas]
  virtual int Pick(std::span<const OutstandingTokens> loads, std::span<const uint32_t> prompt) = 0;
};

inline constexpr std::string_view kBalancerNames[] = {"random", "least-loaded", "prefix-aware"};

// random        any, evenly
// least-loaded  the fewest outstanding tokens
// prefix-aware  among those that were sent most of the prompt's beginning before, the least loaded,
//               unless it has more outstanding tokens than the least loaded of all by what would be
//               saved and the mean together; `known_tokens` of prompts are remembered of each
//               replica, the newest
// InvalidArgument where the name is unknown.
absl::StatusOr<std::unique_ptr<Balancer>> MakeBalancer(std::string_view name, int num_replicas,
                                                       int64_t known_tokens, uint64_t seed);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_BALANCER_H_
