// Options of hydrant-sim: hydrantd's for memory and scheduling, and hydrant-load's for the load,
// under the same names. Plain data.
#ifndef HYDRANT_TOOLS_SIMULATOR_COMMAND_LINE_H_
#define HYDRANT_TOOLS_SIMULATOR_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/engine.h"
#include "scheduler/options.h"
#include "tools/load/run/workload.h"
#include "tools/simulator/model_shape.h"

namespace hydrant::sim {

struct Flags {
  ModelShape shape;
  EngineOptions engine;
  std::string kv_cache_dtype = "auto";
  std::string async_scheduling = "auto";
  uint64_t kv_cache_memory_bytes = uint64_t{2} << 30;
  uint64_t prefix_cache_memory_bytes = uint64_t{512} << 20;
  uint64_t swap_space_bytes = 0;
  std::optional<double> target_ttft_s = {}, target_tpot_s = {};
  std::string policy_under_pressure = "wait";
  bool prefix_caching = true;
  bool fold_heads = false;
  SchedulerOptions scheduler;
  std::string tenant_weights;

  std::string costs;  // a file; empty: DefaultCostModel()
  std::optional<double> noise = {};
  int num_replicas = 1;
  std::string balancer = "least-loaded";

  load::WorkloadOptions workload;
  std::string mix = "full";
  std::string trace_file;
  double trace_rate_scale = 1.0;
  int trace_copies = 1;
  bool clip_lengths = false;
  std::string request_rate;  // empty: 1, or the trace's
  double burstiness = 1.0;

  std::string goodput;
  std::string json;
  bool quiet = false;

  std::vector<std::string> step_traces;  // of `fit`
  std::string fitted;                    // output file; empty: standard output
};

// Borrowed until the command line has been parsed.
void AddSimulateFlags(CLI::App* app, Flags* flags);
void AddFitFlags(CLI::App* app, Flags* flags);
// Derives the remaining fields. InvalidArgument names the flag.
absl::Status CompleteFlags(Flags* flags);
// The given options by name.
std::map<std::string, std::string> GivenOptions(const CLI::App& app);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_COMMAND_LINE_H_
