// What the metadata of a GGUF file say of its model, architecture by architecture. Names of keys
// and tensors are those of the ggml project's gguf package; what an architecture computes is what
// transformers computes of the model that the file was made from.
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

// Anything in the metadata that would change the arithmetic in a way not implemented is refused by
// its name.
absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFile& file);

// The tensors' names where an architecture has no others.
const TensorNames& GgufNames();

// Tensors that the configuration is read from, not the weights.
bool IsGgufRopeTensor(const std::string& name);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_CONFIG_H_
