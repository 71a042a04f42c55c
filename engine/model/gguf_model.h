// A GGUF file as a model source.
#ifndef HYDRANT_ENGINE_MODEL_GGUF_MODEL_H_
#define HYDRANT_ENGINE_MODEL_GGUF_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/model/model_source.h"

namespace hydrant {

// Refuses, by name, features of the file that the engine does not compute.
absl::StatusOr<std::unique_ptr<ModelSource>> MakeGgufSource(std::unique_ptr<GgufFile> file);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_MODEL_H_
