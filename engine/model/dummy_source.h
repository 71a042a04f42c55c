// Random weights for any config.json, for load tests and benchmarks of models without their
// weights.
#ifndef HYDRANT_ENGINE_MODEL_DUMMY_SOURCE_H_
#define HYDRANT_ENGINE_MODEL_DUMMY_SOURCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/model/hf_config.h"
#include "engine/model/model_source.h"

namespace hydrant {

// Weights are normal with the configuration's initializer_range as standard deviation, norms are
// one, biases zero. A weight is a function of (seed, tensor name, index) alone, so it is the same
// on every machine and in any order of access. Tensors have no bytes: the backend draws them
// (kernels/normals.h). `folder` may hold tokenizer files; it is only passed on.
std::unique_ptr<ModelSource> MakeDummySource(HfConfig config, std::string folder, uint64_t seed);

// Fills `out` with values begin, begin + 1, ... of the tensor's stream, of standard deviation 1.
void DummyNormals(uint64_t seed, std::string_view tensor, uint64_t begin, std::span<float> out);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_DUMMY_SOURCE_H_
