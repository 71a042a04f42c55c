// Figures of a run over time, in windows of equal length, for plots.
#ifndef HYDRANT_TOOLS_LOAD_RUN_TIMELINE_H_
#define HYDRANT_TOOLS_LOAD_RUN_TIMELINE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tools/load/run/measures.h"
#include "tools/load/run/outcome.h"

namespace hydrant::load {

struct Window {
  double seconds = 0.0;  // length; of the last one half a step to one and a half
  // In ms, of completed requests: TTFT and E2EL by intended send time, ITL by arrival of the
  // messages.
  Distribution ttft = {}, itl = {}, e2el = {};
  int64_t due = 0;                             // requests intended in it
  int64_t completed = 0;                       // ended in it, as do the next
  int64_t good = 0;                            // within the objectives
  int64_t output_tokens = 0;                   // received, of any request
  double in_flight = 0.0;                      // the mean over time
  std::map<std::string, int64_t> errors = {};  // requests that failed in it
};

struct Timeline {
  double step = 1.0;  // seconds of a window
  std::vector<Window> windows = {};
};

// For the outcomes of one arm, or of all (arm < 0), warm-up included. The step is 1, 2 or 5 times a
// power of ten, the same for every arm: at most 120 windows, and fewer if a window would have
// hardly a request.
Timeline MakeTimeline(std::span<const Outcome> outcomes, const Objectives& objectives,
                      int arm = -1);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_TIMELINE_H_
