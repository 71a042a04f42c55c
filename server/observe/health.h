// Whether the daemon lives, and whether it takes requests: one judgement for /livez, /readyz and
// gRPC's health service. Pure.
#ifndef HYDRANT_SERVER_OBSERVE_HEALTH_H_
#define HYDRANT_SERVER_OBSERVE_HEALTH_H_

#include <string>

#include "scheduler/request.h"
#include "server/net/port_watch.h"
#include "server/observe/serving_state.h"

namespace hydrant {

struct Health {
  bool live = true;      // a restart would not help
  bool ready = false;    // balancers shall send requests here
  bool serves = false;   // requests over connections that are open: gRPC's health
  std::string why = {};  // one line for people; begins with the state
};

// A port that refuses is not ready, but those who are connected lose nothing. `now` is the steady
// clock's. The loop counts as stuck when requests are there and no step has ended for
// `stall_timeout_us`.
Health JudgeHealth(const ServingState& serving, TimeUs now, TimeUs stall_timeout_us,
                   PortState port);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_HEALTH_H_
