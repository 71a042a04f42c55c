// One probe of a sweep: a load of one rate, long enough to say whether the objectives are kept.
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
  double share = 0.99;           // of the requests have to meet them
  double warm_up = 5.0;          // seconds whose requests do not count
  double seconds = 30.0;         // after them, in which requests are sent that do, at least
  int64_t least_requests = 100;  // the seconds become more until so many are due
  double drain = 30.0;  // seconds after the last was sent; who has no end by then is not good
  double burstiness = 1.0;
  uint64_t seed = 0;  // of the times of sending; rates of one seed have the same gaps, scaled
};

// In which requests that count are sent.
double SecondsOf(const ProbeOptions& options, double rate);

struct Probe {
  double rate = 0.0;
  double seconds = 0.0;   // in which requests that count were sent
  int64_t requests = 0;   // that count: but for those with faults
  int64_t good = 0;       // completed, and the objectives met
  bool met = false;       // by enough of them
  bool complete = false;  // false: it was broken off, and says nothing
  // Of those seconds: tokens that came, of any request, and requests in flight on average.
  double output_tokens_per_second = 0.0;
  double in_flight = 0.0;
  Measures measures = {};

  double Share() const {
    return requests > 0 ? static_cast<double>(good) / static_cast<double>(requests) : 0.0;
  }
  // A second of sending: what a rate brings, whatever it leaves behind in the queue.
  double Goodput() const { return seconds > 0.0 ? static_cast<double>(good) / seconds : 0.0; }
};

// `workload`: has requests enough. `go_on`: asked now and then, with the time and all outcomes;
// false breaks it off. What can no longer be good is not waited for.
Probe ProbeRate(const Workload& workload, double rate, const ProbeOptions& options, Target* target,
                const std::function<bool(double now, std::span<const Outcome>)>& go_on = nullptr);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_PROBE_H_
