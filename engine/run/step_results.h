// The results of steps in flight: each step's results are copied to host buffers of its own
// asynchronously, and collected in the order of the steps.
#ifndef HYDRANT_ENGINE_RUN_STEP_RESULTS_H_
#define HYDRANT_ENGINE_RUN_STEP_RESULTS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/run/step/batch.h"
#include "kernels/backend.h"

namespace hydrant {

class StepResults {
 public:
  static constexpr int kMostInFlight = 2;

  // Borrows the backend and its events.
  absl::Status Allocate(Backend* backend, int max_rows, int max_prompt_tokens, int num_heads,
                        int hidden_size);
  // Buffers for table rows, once the size of the table arena is known. REQUIRES: Allocate()
  absl::Status AllocateRows(int block_size, int64_t table_entries);

  // A CacheReport on the device; null for its empty fields.
  struct Report {
    const int32_t* entries = nullptr;
    const PageIds* rows = nullptr;  // [heads, row_width] table rows; `entries` says how many pages
    int32_t row_width = 0;
    const float* retained_mass = nullptr;
    const float* observations = nullptr;
    int num_observations = 0;
  };

  // The results of a step on the device.
  struct OnDevice {
    const TokenId* tokens = nullptr;          // in the order of Batch::ForEachSampled()
    const TokenLogprobs* logprobs = nullptr;  // StepResult::logprobs, then its prompt_logprobs
    int num_logprobs = 0;
    int num_prompt_logprobs = 0;
    // For every slice's Slots(), in slice order, then for the cuts.
    std::span<const Report> reports;
    std::span<const float* const> embeddings;  // of the slices, null where there is none
  };
  // Enqueues the copies after a step's operations.
  // REQUIRES: fewer than kMostInFlight are in flight.
  void Push(const Batch& batch, int num_layers, const OnDevice& left);
  // Waits for the oldest step. After an error none is in flight.
  absl::Status Pop(StepResult* result);

 private:
  struct Reported {
    bool entries = false;
    size_t rows = 0;        // offset of its table rows in Step::rows
    int32_t row_width = 0;  // 0: no rows
    bool retained_mass = false;
    int observations = 0;
  };
  // Host buffers of a step.
  struct Step {
    DeviceBuffer tokens;
    DeviceBuffer logprobs;         // [max_rows + max_prompt_tokens]
    DeviceBuffer entries, masses;  // [max_rows, heads]: one row per report
    DeviceBuffer rows;             // [table_entries]: rows of the reports, concatenated
    DeviceBuffer observations;     // [max_rows, kMaxObservations, heads]
    DeviceBuffer embeddings;       // [max_rows, hidden]
    std::vector<bool> pooled;      // [slices] whether it has an embedding
    size_t decoded = 0;
    size_t logprobs_drawn = 0, logprobs_of_prompts = 0;
    std::vector<bool> ends;  // [slices] whether it ends its prompt
    size_t more = 0;         // tokens of the slices' more_samples
    std::vector<Reported> reports;
    size_t cuts = 0;  // number of cuts; their reports are the last ones
  };
  float* ObservationsOf(const Step& step, size_t row) const;
  CacheReport ReadReport(const Step& step, size_t row) const;
  std::vector<PageIds> PagesOfRows(const PageIds* rows, int32_t row_width,
                                   std::span<const int32_t> entries) const;

  Backend* backend_ = nullptr;
  size_t num_heads_ = 0;
  size_t hidden_size_ = 0;
  int block_size_ = 1;
  std::array<Step, kMostInFlight> steps_;
  int oldest_ = 0;
  int in_flight_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_STEP_RESULTS_H_
