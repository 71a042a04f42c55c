// Sampling parameters of a load, named as in both protocols; unset: the server's default. Greedy by
// default.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_SAMPLING_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_SAMPLING_H_

#include <cstdint>
#include <optional>

namespace hydrant::load {

struct Sampling {
  double temperature = 0.0;
  std::optional<double> top_p = {};
  std::optional<int32_t> top_k = {};
  std::optional<double> min_p = {};
  std::optional<double> repetition_penalty = {};
  std::optional<double> presence_penalty = {};
  std::optional<double> frequency_penalty = {};
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_SAMPLING_H_
