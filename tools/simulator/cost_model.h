// How long a simulated step takes: the terms of scheduler/step_time_model.h, with coefficients that
// are given instead of learned. They come from a machine (tools/simulator/cost_fit.h) or from a
// data sheet. Plain data.
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
  double step_us = 0;          // of every step
  double row_us = 0;           // of a sequence that decodes a token
  double page_us = 0;          // of a page that it attends to
  double prompt_token_us = 0;  // of a prompt's token, through all layers
  double prompt_pair_us = 0;   // of an entry that a prompt's token attends to
  // Steps take longer or shorter: the standard deviation of the logarithm of the time of one of
  // kNoisyUs, or less. What disturbs a step comes now and then, so longer ones vary less.
  double noise = 0;
  std::string source = {};  // where the numbers come from, in words

  double Predict(const StepWork& work) const {
    return step_us + row_us * work.rows + page_us * work.pages +
           prompt_token_us * work.prompt_tokens + prompt_pair_us * work.prompt_pairs;
  }
  // Of a step that is to take so long.
  double NoiseOf(double us) const { return noise * std::sqrt(kNoisyUs / std::max(us, kNoisyUs)); }
  static constexpr double kNoisyUs = 10e3;
};

// {"step_us": 400, "row_us": ..., "page_us": ..., "prompt_token_us": ..., "prompt_pair_us": ...},
// "noise" and "source" where they are wanted. InvalidArgument names the file and the field.
absl::StatusOr<CostModel> ParseCostModel(std::string_view text, const std::string& name);
absl::StatusOr<CostModel> ReadCostModel(const std::string& path);
std::string ToJson(const CostModel& model);

// SmolLM2-135M on two cores: what the first table of docs/results/performance.md comes to. No noise.
CostModel DefaultCostModel();

}  // namespace hydrant::sim

#endif  // HYDRANT_TOOLS_SIMULATOR_COST_MODEL_H_
