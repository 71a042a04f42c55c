// The highest rate that each of several arms bears, arm by arm. What a probe is and where its
// record is kept are the caller's.
#ifndef HYDRANT_TOOLS_LOAD_RUN_SWEEP_H_
#define HYDRANT_TOOLS_LOAD_RUN_SWEEP_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/load/run/rate_search.h"

namespace hydrant::load {

// A probe as it is kept: its figures are a JSON object (tools/load/report/sweep_report.h).
struct ProbeRecord {
  double rate = 0.0;
  bool met = false;
  std::string figures = {};
};

struct SweptArm {
  std::string name;
  std::vector<ProbeRecord> probes = {};  // in the order of their making
  std::optional<double> highest_met = {}, lowest_failed = {};
  bool finished = false;
};

struct SweepCalls {
  // Nothing: it was broken off, and the sweep with it.
  std::function<std::optional<ProbeRecord>(size_t arm, double rate)> probe;
  std::function<void(const std::vector<SweptArm>&)> on_probe = nullptr;  // after each
};

// `known`: what a sweep that was broken off found, by arm; the same rates are not probed again.
// Returns whether all arms are finished.
bool Sweep(const RateSearchOptions& search, const std::vector<SweptArm>& known,
           const SweepCalls& calls, std::vector<SweptArm>* arms);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_SWEEP_H_
