// The results of steps in flight: each step's tokens come to the host by themselves, into memory of
// their own, and are waited for in the order of the steps.
#ifndef HYDRANT_ENGINE_STEP_RESULTS_H_
#define HYDRANT_ENGINE_STEP_RESULTS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/batch.h"
#include "kernels/backend.h"

namespace hydrant {

class StepResults {
 public:
  static constexpr int kMostInFlight = 2;

  // Borrows the backend and its marks.
  absl::Status Allocate(Backend* backend, int max_rows);

  // Behind the operations of a step. tokens: on the device, of the step's decode rows, then of its
  // prompts that end. REQUIRES: fewer than kMostInFlight are in flight.
  void Push(const Batch& batch, int num_layers, const TokenId* tokens);
  // Waits for the oldest one. After an error none is in flight.
  absl::Status Pop(StepResult* result);

 private:
  struct Step {
    DeviceBuffer tokens;  // the host's
    size_t decoded = 0;
    std::vector<bool> ends_prompt;  // of the slices
  };

  Backend* backend_ = nullptr;
  std::array<Step, kMostInFlight> steps_;
  int oldest_ = 0;
  int in_flight_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_STEP_RESULTS_H_
