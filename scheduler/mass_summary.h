// Summarizes the retained mass of all heads for the client.
#ifndef HYDRANT_SCHEDULER_MASS_SUMMARY_H_
#define HYDRANT_SCHEDULER_MASS_SUMMARY_H_

#include <vector>

#include "scheduler/request.h"

namespace hydrant {

// REQUIRES: not empty. p10 by nearest rank: a tenth of the heads are at or below it.
RetainedMass Summarize(std::vector<float> mass_of_heads);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_MASS_SUMMARY_H_
