// A daemon's serving loop (scheduler/serving_loop.h) on a simulated clock: gate, check, scheduler
// and an engine with step durations from a cost model. Requests that arrive during a step are
// admitted at its end. One thread.
#ifndef HYDRANT_TOOLS_SIMULATOR_REPLICA_H_
#define HYDRANT_TOOLS_SIMULATOR_REPLICA_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "scheduler/request_check.h"
#include "scheduler/request_gate.h"
#include "scheduler/scheduler.h"
#include "tools/simulator/cost_model.h"
#include "tools/simulator/model_shape.h"
#include "tools/simulator/simulated_engine.h"
#include "tools/simulator/simulated_tokenizer.h"

namespace hydrant::sim {

// Options common to all replicas.
struct ReplicaOptions {
  SimulatedLimits limits;
  SchedulerOptions scheduler;
  CostModel cost;
};

class Replica {
 public:
  Replica(const ReplicaOptions& options, uint64_t seed);

  // As ServingLoop::Submit; `now` never decreases. A refused request has no events.
  std::optional<Failed> Submit(RequestHandle handle, Request request, TimeUs now);
  // End of the oldest running step; unset: no step is running.
  std::optional<TimeUs> NextAt() const;
  // Completes that step, and begins the next. REQUIRES: a step is running
  void Advance();
  // Events since the last call, in order; all at the time of NextAt() before Advance(), or of the
  // last Submit().
  std::vector<Event> TakeEvents() { return std::exchange(events_, {}); }

  ServingStats Stats() const { return scheduler_.Stats(); }
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Arrival {
    RequestHandle handle = 0;
    CheckedRequest request;
    TimeUs at = 0;
  };
  void Begin(TimeUs now);
  void Publish();
  TimeUs TimeOfStep();

  const EngineLimits limits_;
  const double heads_alike_;
  const CacheSpec policy_under_pressure_;
  const CostModel cost_;
  std::mt19937_64 random_;
  SimulatedTokenizer tokenizer_;
  SimulatedEngine engine_;
  RequestGate gate_;
  Scheduler scheduler_;
  std::vector<Arrival> inbox_;
  std::deque<TimeUs> ends_;  // of running steps, oldest first
  StepResult result_;
  std::vector<Event> events_;
};

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_REPLICA_H_
