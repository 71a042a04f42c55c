// Liveness and readiness of the daemon: one judgement for /livez, /readyz and gRPC's health
// service. Pure.
#ifndef HYDRANT_SERVER_OBSERVE_HEALTH_H_
#define HYDRANT_SERVER_OBSERVE_HEALTH_H_

#include <string>

#include "scheduler/request.h"
#include "server/net/port_probe.h"
#include "server/observe/serving_state.h"

namespace hydrant {

struct Health {
  bool live = true;      // false: a restart may help
  bool ready = false;    // load balancers may send requests
  bool serves = false;   // serves requests on open connections: gRPC's health
  std::string why = {};  // one line for operators; begins with the state
};

// A port that refuses connections is not ready, but open connections are still served. `now`:
// steady clock. The loop counts as stuck when it has requests and no step has ended for
// `stall_timeout_us`.
Health JudgeHealth(const ServingState& serving, TimeUs now, TimeUs stall_timeout_us,
                   PortState port);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_HEALTH_H_
