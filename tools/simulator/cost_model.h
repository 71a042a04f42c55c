// The duration of a simulated step: the terms of scheduler/step_time_model.h with given
// coefficients, measured on a machine (tools/simulator/cost_fit.h) or derived from a data sheet.
// Plain data.
#ifndef HYDRANT_TOOLS_SIMULATOR_COST_MODEL_H_
#define HYDRANT_TOOLS_SIMULATOR_COST_MODEL_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "scheduler/step_time_model.h"

namespace hydrant::sim {

// Microseconds, none negative.
struct CostModel {
  double step_us = 0;          // per step
  double row_us = 0;           // per sequence that decodes a token
  double page_us = 0;          // per page it attends to
  double prompt_token_us = 0;  // per prompt token, through all layers
  double prompt_pair_us = 0;   // per entry that a prompt token attends to
  // Random variation: standard deviation of the log of the duration, for steps of up to kNoisyUs.
  // Disturbances are occasional, so longer steps vary less.
  double noise = 0;
  std::string source = {};  // provenance, as text

  double Predict(const StepWork& work) const {
    return step_us + row_us * work.rows + page_us * work.pages +
           prompt_token_us * work.prompt_tokens + prompt_pair_us * work.prompt_pairs;
  }
  // For a step with this expected duration.
  double NoiseOf(double us) const { return noise * std::sqrt(kNoisyUs / std::max(us, kNoisyUs)); }
  static constexpr double kNoisyUs = 10e3;
};

// {"step_us": 400, "row_us": ..., "page_us": ..., "prompt_token_us": ..., "prompt_pair_us": ...},
// optionally "noise" and "source". InvalidArgument names the file and the field.
absl::StatusOr<CostModel> ParseCostModel(std::string_view text, const std::string& name);
absl::StatusOr<CostModel> ReadCostModel(const std::string& path);
std::string ToJson(const CostModel& model);

// SmolLM2-135M on two cores, from docs/results/performance.md. No noise.
CostModel DefaultCostModel();

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_COST_MODEL_H_
