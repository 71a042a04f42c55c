// A StepExecutor that runs each step when it is enqueued, as on a CPU, and holds the result until
// it is collected.
#ifndef HYDRANT_TESTS_SCHEDULER_IMMEDIATE_EXECUTOR_H_
#define HYDRANT_TESTS_SCHEDULER_IMMEDIATE_EXECUTOR_H_

#include <deque>
#include <utility>

#include "engine/run/step/batch.h"

namespace hydrant {

class ImmediateExecutor : public StepExecutor {
 public:
  void Enqueue(const Batch& batch) final {
    for (RowMask* mask : batch.masks) mask->Make();
    Outcome& outcome = outcomes_.emplace_back();
    outcome.status = RunStep(batch, &outcome.result);
  }
  absl::Status Collect(StepResult* result) final {
    const Outcome outcome = std::move(outcomes_.front());
    outcomes_.pop_front();
    *result = outcome.result;
    if (!outcome.status.ok()) outcomes_.clear();
    return outcome.status;
  }

 protected:
  virtual absl::Status RunStep(const Batch& batch, StepResult* result) = 0;

 private:
  struct Outcome {
    absl::Status status;
    StepResult result;
  };
  std::deque<Outcome> outcomes_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SCHEDULER_IMMEDIATE_EXECUTOR_H_
