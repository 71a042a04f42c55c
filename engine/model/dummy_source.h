// Random weights for any config.json: load tests and benchmarks of shapes whose weights are not at
// hand.
#ifndef HYDRANT_ENGINE_MODEL_DUMMY_SOURCE_H_
#define HYDRANT_ENGINE_MODEL_DUMMY_SOURCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/hf_config.h"
#include "engine/model/model_source.h"

namespace hydrant {

// Weights are normal with the configuration's initializer_range as standard deviation, norms are
// one. A weight is a function of (seed, tensor name, index) alone: the same on every machine,
// whatever was asked for before. A layer is made when it is first asked for and kept; different
// threads may ask for different layers at once. `folder` may hold tokenizer files; it is only
// passed on.
absl::StatusOr<std::unique_ptr<ModelSource>> MakeDummySource(HfConfig config, std::string folder,
                                                             uint64_t seed);

// Fills `out` with values begin, begin + 1, ... of the tensor's stream: mean 0, standard
// deviation 1. The sum of twelve 16-bit uniforms, which needs integer arithmetic alone and so has
// no rounding that differs by machine; no value is beyond 6, the excess kurtosis is -0.1.
void DummyNormals(uint64_t seed, std::string_view tensor, uint64_t begin, std::span<float> out);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_DUMMY_SOURCE_H_
