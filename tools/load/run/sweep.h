// Searches the highest sustainable rate of each arm, one arm after the other. The caller runs
// probes and stores their records.
#ifndef HYDRANT_TOOLS_LOAD_RUN_SWEEP_H_
#define HYDRANT_TOOLS_LOAD_RUN_SWEEP_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/load/run/rate_search.h"

namespace hydrant::load {

// A stored probe: its figures are a JSON object (tools/load/report/sweep_report.h).
struct ProbeRecord {
  double rate = 0.0;
  bool met = false;
  std::string figures = {};
};

struct SweptArm {
  std::string name;
  std::vector<ProbeRecord> probes = {};  // in order
  std::optional<double> highest_met = {}, lowest_failed = {};
  bool finished = false;
};

struct SweepCalls {
  // nullopt: aborted, which ends the sweep.
  std::function<std::optional<ProbeRecord>(size_t arm, double rate)> probe;
  std::function<void(const std::vector<SweptArm>&)> on_probe = nullptr;  // after each
};

// `known`: results of an interrupted sweep, by arm; the same rates are not probed again. Returns
// whether all arms are finished.
bool Sweep(const RateSearchOptions& search, const std::vector<SweptArm>& known,
           const SweepCalls& calls, std::vector<SweptArm>* arms);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_SWEEP_H_
