// What a client hears of the retained mass of its heads.
#ifndef HYDRANT_SCHEDULER_MASS_SUMMARY_H_
#define HYDRANT_SCHEDULER_MASS_SUMMARY_H_

#include <vector>

#include "scheduler/request.h"

namespace hydrant {

// REQUIRES: not empty. p10 by nearest rank: the lowest mass that a tenth of the heads do not
// exceed.
RetainedMass Summarize(std::vector<float> mass_of_heads);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_MASS_SUMMARY_H_
