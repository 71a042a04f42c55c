// Reads a ModelConfig from the metadata of a GGUF file, architecture by architecture. Names of keys
// and tensors are those of the ggml project's gguf package; the arithmetic of an architecture is
// that of the transformers model that the file was converted from.
#ifndef HYDRANT_ENGINE_MODEL_GGUF_CONFIG_H_
#define HYDRANT_ENGINE_MODEL_GGUF_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"

namespace hydrant {

struct GgufConfig {
  ModelConfig model;  // validated
  TensorNames names;
};

// Refuses, by name, any metadata that would change the arithmetic in a way not implemented.
absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFile& file);

// Tensor names of architectures that do not define others.
const TensorNames& GgufNames();

// Tensors that belong to the configuration, not to the weights.
bool IsGgufRopeTensor(const std::string& name);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_CONFIG_H_
