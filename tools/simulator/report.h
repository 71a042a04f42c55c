// The result of a simulation: figures, a table for a terminal, and JSON with hydrant-load's names,
// which `hydrant-load compare` reads.
#ifndef HYDRANT_TOOLS_SIMULATOR_REPORT_H_
#define HYDRANT_TOOLS_SIMULATOR_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/load/run/measures.h"
#include "tools/simulator/simulation.h"

namespace hydrant::sim {

// Times in milliseconds, of completed requests.
struct Figures {
  int64_t requests = 0, completed = 0, good = 0;
  int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0, preemptions = 0;
  double seconds = 0;  // of the run
  load::Distribution ttft = {}, tpot = {}, e2el = {}, queue = {};

  double PerSecond(int64_t count) const {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  }
};
// For one arm, or all (arm < 0).
Figures MakeFigures(const SimulationResult& result, const load::Objectives& objectives,
                    int arm = -1);

struct ReportOptions {
  load::Objectives objectives;
  int num_replicas = 1;
  double wall_seconds = 0;
  std::vector<std::string> arms;                  // names
  std::map<std::string, std::string> given = {};  // options given on the command line
};
std::string TableOf(const SimulationResult& result, const ReportOptions& options);
std::string JsonOf(const SimulationResult& result, const ReportOptions& options);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_REPORT_H_
