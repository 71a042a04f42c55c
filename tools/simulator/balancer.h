// Routes requests to replicas. A balancer knows only the requests that it sent and those that
// ended. One thread.
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

// Per replica: tokens of prompts and of answers at maximum length, over the requests in flight
// there.
using OutstandingTokens = int64_t;

class Balancer {
 public:
  virtual ~Balancer() = default;
  // The index of a replica. loads: [replicas]
  virtual int Pick(std::span<const OutstandingTokens> loads, std::span<const uint32_t> prompt) = 0;
};

inline constexpr std::string_view kBalancerNames[] = {"random", "least-loaded", "prefix-aware"};

// random        uniform
// least-loaded  the fewest outstanding tokens
// prefix-aware  the least loaded of the replicas that received the longest prefix of the prompt,
//               unless its outstanding tokens exceed those of the least loaded replica by more than
//               the tokens saved plus the mean; remembers each replica's newest `known_tokens`
//               prompt tokens
// InvalidArgument if the name is unknown.
absl::StatusOr<std::unique_ptr<Balancer>> MakeBalancer(std::string_view name, int num_replicas,
                                                       int64_t known_tokens, uint64_t seed);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_BALANCER_H_
