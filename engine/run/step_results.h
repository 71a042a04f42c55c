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
  static constexpr int kMaxInFlight = 2;

  // Borrows the backend and its events.
  absl::Status Allocate(Backend* backend, const EngineLimits& limits, int hidden_size);
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
    const TokenId* tokens = nullptr;          // of Batch::sampled
    const TokenLogprobs* logprobs = nullptr;  // StepResult::logprobs, then its prompt_logprobs
    int num_logprobs = 0;
    int num_prompt_logprobs = 0;
    // A report for each of the Slots() of the runs in the arena, in the order of the runs, then for
    // each compaction.
    std::span<const Report> reports;
    std::span<const float* const> embeddings;  // of the runs, null where there is none; or empty
  };
  // Enqueues the copies after a step's operations.
  // `kept_entries`: StepResult's.
  // REQUIRES: fewer than kMaxInFlight are in flight.
  void Push(const Batch& batch, const OnDevice& left, std::vector<KeptEntries> kept_entries);
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
    DeviceBuffer tokens;           // [sampled rows]
    DeviceBuffer logprobs;         // [sampled rows + arena]
    DeviceBuffer entries, masses;  // [slots, heads]: one row per report
    DeviceBuffer rows;             // [table_entries]: rows of the reports, concatenated
    DeviceBuffer observations;     // [slots, kMaxObservations, heads]
    DeviceBuffer embeddings;       // [slots, hidden]
    std::vector<bool> pooled;      // [runs] whether it has an embedding; or empty
    std::vector<KeptEntries> kept_entries;
    size_t sampled = 0;
    size_t logprobs_drawn = 0, logprobs_of_prompts = 0;
    std::vector<Reported> reports;
    size_t compactions = 0;  // number of compactions; their reports are the last ones
  };
  float* ObservationsOf(const Step& step, size_t row) const;
  CacheReport ReadReport(const Step& step, size_t row) const;
  std::vector<PageIds> PagesOfRows(const PageIds* rows, int32_t row_width,
                                   std::span<const int32_t> entries) const;

  Backend* backend_ = nullptr;
  size_t num_heads_ = 0;
  size_t hidden_size_ = 0;
  int block_size_ = 1;
  std::array<Step, kMaxInFlight> steps_;
  int oldest_ = 0;
  int in_flight_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_STEP_RESULTS_H_
