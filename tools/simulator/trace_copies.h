// Scales a trace to more users: several copies are played concurrently.
#ifndef HYDRANT_TOOLS_SIMULATOR_TRACE_COPIES_H_
#define HYDRANT_TOOLS_SIMULATOR_TRACE_COPIES_H_

#include <cstdint>
#include <vector>

#include "tools/load/run/trace.h"

namespace hydrant::sim {

// The first `most` requests, ascending in time, of `copies` copies of the trace. Each copy runs at
// the trace's pace from a random start drawn from the seed (the first copy: from the beginning),
// wraps around at the end, and shares no prompts with the others. REQUIRES: the trace is not empty
// and ascending, copies and most are at least 1
std::vector<load::TracedRequest> CopiesOf(const std::vector<load::TracedRequest>& trace, int copies,
                                          int64_t most, uint64_t seed);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_TRACE_COPIES_H_
