// A load on one replica or on many behind a balancer, under one simulated clock: what becomes of
// every request. Of a request that has ended a few numbers stay, whatever its length. Deterministic
// by its seeds. One thread.
#ifndef HYDRANT_TOOLS_SIMULATOR_SIMULATION_H_
#define HYDRANT_TOOLS_SIMULATOR_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/load/run/workload.h"
#include "tools/simulator/mix.h"
#include "tools/simulator/replica.h"
#include "tools/simulator/timeline.h"

namespace hydrant::sim {

struct SimulationOptions {
  ReplicaOptions replica;
  int num_replicas = 1;
  std::string balancer = "least-loaded";  // MakeBalancer(), where there are several replicas
  std::vector<Arm> mix;                   // the arms of the workload
  // What is longer than max_model_len is made to fit: the answer to half of that, or what the
  // prompt leaves, the prompt to the rest. Else it is refused, as the daemon does.
  bool clip_lengths = false;
  uint64_t seed = 0;  // of the noise, of what ragged heads keep, of the balancer
};

// Times from the start of the run; -1: never.
struct SimulatedRequest {
  TimeUs arrived = 0;
  TimeUs first_token = -1;
  TimeUs last_token = -1;
  TimeUs longest_gap = 0;  // between two tokens
  TimeUs queue = 0;        // until the first of its prompt was read
  int32_t arm = 0;
  int32_t replica = 0;
  int32_t input_tokens = 0;
  int32_t output_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, not read
  int32_t preemptions = 0;
  bool completed = false;

  double Ttft() const { return static_cast<double>(first_token - arrived) * 1e-6; }
  double EndToEnd() const { return static_cast<double>(last_token - arrived) * 1e-6; }
  // REQUIRES: more than one token
  double Tpot() const {
    return static_cast<double>(last_token - first_token) * 1e-6 / (output_tokens - 1);
  }
};

struct Refusals {
  int64_t count = 0;    // requests
  std::string example;  // what the first of them was told
};

struct SimulationResult {
  std::vector<SimulatedRequest> requests;       // in the order of the load
  std::map<std::string, Refusals> errors;       // by the reason
  int64_t clipped = 0;                          // requests
  TimeUs end = 0;                               // of the last step
  ServingStats totals;                          // sums over replicas of what is counted
  double mean_page_use = 0, peak_page_use = 0;  // share of the pools' pages; of the fullest
  double mean_running = 0;                      // sequences, of a replica
  double busy = 0;                              // share of the time that a replica works
  // By tenant, tokens that came, prompts with the first, while every tenant had max_num_seqs
  // requests without a token; empty: there is one tenant.
  std::map<std::string, int64_t> contended_tokens;
  Timeline timeline;
};

// due: when request i is to be sent, in seconds, never before the one before it; called once for
// each, in order. progress (may be null) hears often how many have arrived and ended. Everything is
// borrowed until it returns. InvalidArgument names the option.
using ProgressCallback = std::function<void(int64_t arrived, int64_t ended, TimeUs now)>;
absl::StatusOr<SimulationResult> Simulate(const SimulationOptions& options,
                                          const load::Workload& workload,
                                          const std::function<double(int64_t index)>& due,
                                          const ProgressCallback& progress = nullptr);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_SIMULATION_H_
