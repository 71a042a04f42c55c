// Simulates a load on one replica or on several behind a balancer, on one simulated clock. A
// finished request takes constant memory. Deterministic by its seeds. One thread.
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
  std::string balancer = "least-loaded";  // MakeBalancer(), with several replicas
  std::vector<Arm> mix;                   // the arms of the workload
  // Requests longer than max_model_len are shortened: the answer to half of it, or to the room left
  // by the prompt, then the prompt to the rest. Otherwise they are refused, as by the daemon.
  bool clip_lengths = false;
  uint64_t seed = 0;  // for noise, ragged heads and balancer
};

// Times from the start of the run; -1: never.
struct SimulatedRequest {
  TimeUs arrived = 0;
  TimeUs first_token = -1;
  TimeUs last_token = -1;
  TimeUs longest_gap = 0;  // between two tokens
  TimeUs queue = 0;        // until its prefill began
  int32_t arm = 0;
  int32_t replica = 0;
  int32_t input_tokens = 0;
  int32_t output_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens from the prefix cache
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
  std::string example;  // message of the first
};

struct SimulationResult {
  std::vector<SimulatedRequest> requests;       // in the order of the load
  std::map<std::string, Refusals> errors;       // by reason
  int64_t clipped = 0;                          // shortened requests
  TimeUs end = 0;                               // of the last step
  ServingStats totals;                          // sums of counters over replicas
  double mean_page_use = 0, peak_page_use = 0;  // fraction of the pools' pages; of the fullest
  double mean_running = 0;                      // sequences per replica
  double busy = 0;                              // fraction of time in steps
  // Tokens received by tenant, prompts with their first token, while every tenant had max_num_seqs
  // requests without a token; empty: a single tenant.
  std::map<std::string, int64_t> contended_tokens;
  Timeline timeline;
};

// due: send time of request i in seconds, non-decreasing; called once for each, in order. progress
// (may be null) is called often with the numbers of arrived and ended requests. All arguments are
// borrowed during the call. InvalidArgument names the option.
using ProgressCallback = std::function<void(int64_t arrived, int64_t ended, TimeUs now)>;
absl::StatusOr<SimulationResult> Simulate(const SimulationOptions& options,
                                          const load::Workload& workload,
                                          const std::function<double(int64_t index)>& due,
                                          const ProgressCallback& progress = nullptr);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_SIMULATION_H_
