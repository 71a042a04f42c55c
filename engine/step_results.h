// The results of steps in flight: each step's tokens come to the host by themselves, into memory of
// their own, and are waited for in the order of the steps.
#ifndef HYDRANT_ENGINE_STEP_RESULTS_H_
#define HYDRANT_ENGINE_STEP_RESULTS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/batch.h"
#include "kernels/backend.h"

namespace hydrant {

class StepResults {
 public:
  static constexpr int kMostInFlight = 2;

  // Borrows the backend and its marks.
  absl::Status Allocate(Backend* backend, int max_rows, int num_heads);

  // What a prompt that ended has become, on the device: arrays over all heads of all layers.
  struct Compressed {
    const int32_t* entries = nullptr;      // null: as the plan says
    const float* retained_mass = nullptr;  // null: nothing has left
  };

  // Behind the operations of a step. tokens: on the device, of the step's decode rows, then of its
  // prompts that end; compressed: of the slices, in their order. REQUIRES: fewer than kMostInFlight
  // are in flight.
  void Push(const Batch& batch, int num_layers, const TokenId* tokens,
            std::span<const Compressed> compressed);
  // Waits for the oldest one. After an error none is in flight.
  absl::Status Pop(StepResult* result);

 private:
  struct Prompt {
    bool ends = false;
    bool has_entries = false;
    bool has_mass = false;
  };
  struct Step {
    DeviceBuffer tokens;           // the host's
    DeviceBuffer entries, masses;  // the host's, [max_rows, heads]: a row a prompt
    size_t decoded = 0;
    std::vector<Prompt> prompts;  // of the slices
  };

  Backend* backend_ = nullptr;
  size_t num_heads_ = 0;
  std::array<Step, kMostInFlight> steps_;
  int oldest_ = 0;
  int in_flight_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_STEP_RESULTS_H_
