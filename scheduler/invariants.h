// The invariants of scheduler.h, checked slowly and plainly. For tests.
#ifndef HYDRANT_SCHEDULER_INVARIANTS_H_
#define HYDRANT_SCHEDULER_INVARIANTS_H_

#include "absl/status/status.h"
#include "scheduler/scheduler_state.h"

namespace hydrant {

// InternalError says which is broken. O(pool). REQUIRES: between steps
absl::Status CheckInvariants(const SchedulerState& state);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_INVARIANTS_H_
