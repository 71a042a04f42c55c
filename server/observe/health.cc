#include "server/observe/health.h"

#include <fmt/format.h>

namespace hydrant {

Health JudgeHealth(const ServingState& serving, TimeUs now, TimeUs stall_timeout_us,
                   PortState port) {
  if (port == PortState::kSilent)
    return {.live = false, .why = "deaf: the gRPC port does not answer new connections"};
  if (serving.state == v1::SERVER_STATE_LOADING)
    return {.why = fmt::format("loading: {:.0f} % of the model", serving.load_fraction * 100)};
  if (serving.state == v1::SERVER_STATE_ENGINE_LOST)
    return {.live = false,
            .why = fmt::format("engine lost: {}", std::string(serving.lost.message()))};
  if (serving.loop != nullptr) {
    const ServingStats loop = serving.loop->Stats();
    // The loop knows of a lost engine slightly before the daemon's state does.
    if (const absl::Status engine = serving.loop->EngineStatus(); !engine.ok())
      return {.live = false, .why = fmt::format("engine lost: {}", std::string(engine.message()))};
    const TimeUs since = loop.step_due_since;
    if (since != 0 && now - since >= stall_timeout_us)
      return {.live = false,
              .why = fmt::format("stalled: no step for {:.1f} s with {} requests there",
                                 static_cast<double>(now - since) * 1e-6,
                                 loop.running + loop.prefilling + loop.waiting)};
  }
  if (serving.state == v1::SERVER_STATE_DRAINING)
    return {.why = "draining: the running requests are brought to their end"};
  if (port == PortState::kRefuses)
    return {.serves = true, .why = "full: new connections are refused, too many are open"};
  return {.ready = true, .serves = true, .why = "ready"};
}

}  // namespace hydrant
