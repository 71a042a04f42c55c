// How a model's files recommend that it is sampled. Plain data and its reader; stateless.
#ifndef HYDRANT_ENGINE_MODEL_SAMPLING_DEFAULTS_H_
#define HYDRANT_ENGINE_MODEL_SAMPLING_DEFAULTS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/model/model_source.h"

namespace hydrant {

// Unset: nothing is said. As Sampling of proto/hydrant/v1/hydrant.proto; not checked.
struct SamplingDefaults {
  std::optional<double> temperature{}, top_p{}, min_p{}, repetition_penalty{};
  std::optional<int32_t> top_k{};

  bool operator==(const SamplingDefaults&) const = default;
};

// Of a folder temperature, top_p, top_k, min_p and repetition_penalty in generation_config.json; of
// a GGUF file general.sampling.temp, .top_p, .top_k, .min_p and .penalty_repeat. InvalidArgument
// names what is no number.
absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const ModelSource& source);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_SAMPLING_DEFAULTS_H_
