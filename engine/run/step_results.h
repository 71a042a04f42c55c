// The results of steps in flight: each step's tokens come to the host by themselves, into memory of
// their own, and are waited for in the order of the steps.
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
  // Once the pool is known: of its tables, which all slots' rows lie in. REQUIRES: Allocate()
  absl::Status AllocateRows(int block_size, int64_t table_entries);

  // A CacheReport on the device, null where that is empty.
  struct Report {
    const int32_t* entries = nullptr;
    const PageIds* rows = nullptr;  // [heads, row_width] of which the pages of `entries` are named
    int32_t row_width = 0;
    const float* retained_mass = nullptr;
    const float* observations = nullptr;
    int num_observations = 0;
  };

  // What a step leaves on the device.
  struct OnDevice {
    const TokenId* tokens = nullptr;          // in the order of Batch::ForEachSampled()
    const TokenLogprobs* logprobs = nullptr;  // StepResult::logprobs, then its prompt_logprobs
    int num_logprobs = 0;
    int num_prompt_logprobs = 0;
    // Of the slices and their other slots, in their order, then of the cuts.
    std::span<const Report> reports;
    std::span<const float* const> embeddings;  // of the slices, null where there is none
  };
  // Behind the operations of a step. REQUIRES: fewer than kMostInFlight are in flight.
  void Push(const Batch& batch, int num_layers, const OnDevice& left);
  // Waits for the oldest one. After an error none is in flight.
  absl::Status Pop(StepResult* result);

 private:
  struct Reported {
    bool entries = false;
    size_t rows = 0;        // where they begin in Step::rows
    int32_t row_width = 0;  // 0: there are none
    bool retained_mass = false;
    int observations = 0;
  };
  // In the host's memory.
  struct Step {
    DeviceBuffer tokens;
    DeviceBuffer logprobs;         // [max_rows + max_prompt_tokens]
    DeviceBuffer entries, masses;  // [max_rows, heads]: a row a report
    DeviceBuffer rows;             // [table_entries]: reports' one behind the other
    DeviceBuffer observations;     // [max_rows, kMaxObservations, heads]
    DeviceBuffer embeddings;       // [max_rows, hidden]
    std::vector<bool> pooled;      // of the slices
    size_t decoded = 0;
    size_t logprobs_drawn = 0, logprobs_of_prompts = 0;
    std::vector<bool> ends;  // its prompt, of the slices
    size_t more = 0;         // tokens of their more_samples
    std::vector<Reported> reports;
    size_t cuts = 0;  // the last of the reports
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
