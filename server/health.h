// Whether the daemon lives, and whether it takes requests: one judgement for /livez, /readyz and
// gRPC's health service. Pure.
#ifndef HYDRANT_SERVER_HEALTH_H_
#define HYDRANT_SERVER_HEALTH_H_

#include <string>

#include "scheduler/request.h"
#include "server/serving_state.h"

namespace hydrant {

struct Health {
  bool live = true;      // a restart would not help
  bool ready = false;    // balancers shall send requests here
  std::string why = {};  // one line for people; begins with the state
};

// `now` is the steady clock's. The loop counts as stuck when requests are there and no step has
// ended for `stall_timeout_us`.
Health JudgeHealth(const ServingState& serving, TimeUs now, TimeUs stall_timeout_us);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_HEALTH_H_
