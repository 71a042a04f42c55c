// Sampling parameters that a model's files recommend. Plain data and its reader; stateless.
#ifndef HYDRANT_ENGINE_MODEL_SAMPLING_DEFAULTS_H_
#define HYDRANT_ENGINE_MODEL_SAMPLING_DEFAULTS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/model/model_source.h"

namespace hydrant {

// Unset: no recommendation. Units as Sampling in proto/hydrant/v1/hydrant.proto; ranges are not
// checked.
struct SamplingDefaults {
  std::optional<double> temperature{}, top_p{}, min_p{}, repetition_penalty{};
  std::optional<int32_t> top_k{};

  bool operator==(const SamplingDefaults&) const = default;
};

// Reads temperature, top_p, top_k, min_p and repetition_penalty from a folder's
// generation_config.json, or general.sampling.temp, .top_p, .top_k, .min_p and .penalty_repeat from
// a GGUF file. InvalidArgument names the value that is no number.
absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const ModelSource& source);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_SAMPLING_DEFAULTS_H_
