// More users than a trace has: it is played several times at once.
#ifndef HYDRANT_TOOLS_SIMULATOR_TRACE_COPIES_H_
#define HYDRANT_TOOLS_SIMULATOR_TRACE_COPIES_H_

#include <cstdint>
#include <vector>

#include "tools/load/run/trace.h"

namespace hydrant::sim {

// The first `most` requests, ascending in time, of so many copies of the trace. Each copy goes at
// the trace's pace, begins at a place in it that is drawn from the seed (the first copy: at its
// begin), goes on at its begin when it has come to its end, and shares no prompts with the others.
// REQUIRES: the trace is not empty and ascending, copies and most are at least 1
std::vector<load::TracedRequest> CopiesOf(const std::vector<load::TracedRequest>& trace, int copies,
                                          int64_t most, uint64_t seed);

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_TRACE_COPIES_H_
