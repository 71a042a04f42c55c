// One probe of a sweep: a load at one rate, long enough to decide whether it meets the objectives.
#ifndef HYDRANT_TOOLS_LOAD_RUN_PROBE_H_
#define HYDRANT_TOOLS_LOAD_RUN_PROBE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tools/load/run/measures.h"
#include "tools/load/run/outcome.h"
#include "tools/load/run/target.h"
#include "tools/load/run/workload.h"

namespace hydrant::load {

struct ProbeOptions {
  Objectives objectives = {};
  double share = 0.99;           // of requests that must meet them
  double warm_up = 5.0;          // seconds of warm-up
  double seconds = 30.0;         // minimum seconds of sending measured requests
  int64_t least_requests = 100;  // seconds are extended until this many are due
  double drain = 30.0;  // seconds after the last send; unfinished requests are then not good
  double burstiness = 1.0;
  uint64_t seed = 0;  // of send times; equal seeds give the same gaps, scaled
};

// Seconds of sending measured requests.
double SecondsOf(const ProbeOptions& options, double rate);

struct Probe {
  double rate = 0.0;
  double seconds = 0.0;   // of sending measured requests
  int64_t requests = 0;   // measured requests without injected faults
  int64_t good = 0;       // completed and within the objectives
  bool met = false;       // by a sufficient share
  bool complete = false;  // false: aborted, without a result
  // During those seconds: tokens received for any request, and mean requests in flight.
  double output_tokens_per_second = 0.0;
  double in_flight = 0.0;
  Measures measures = {};

  double Share() const {
    return requests > 0 ? static_cast<double>(good) / static_cast<double>(requests) : 0.0;
  }
  // Per second of sending, regardless of the queue left behind.
  double Goodput() const { return seconds > 0.0 ? static_cast<double>(good) / seconds : 0.0; }
};

// `workload`: has enough requests. `go_on`: called periodically with the time and all outcomes;
// false aborts. Does not wait for requests that can no longer be good.
Probe ProbeRate(const Workload& workload, double rate, const ProbeOptions& options, Target* target,
                const std::function<bool(double now, std::span<const Outcome>)>& go_on = nullptr);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_PROBE_H_
