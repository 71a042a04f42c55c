// A llama model in one GGUF file.
#ifndef HYDRANT_ENGINE_MODEL_GGUF_LLAMA_H_
#define HYDRANT_ENGINE_MODEL_GGUF_LLAMA_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/model/model_source.h"

namespace hydrant {

// The shape of the model from the metadata, the embedding and rope_freqs.weight; already validated.
absl::StatusOr<ModelConfig> ReadGgufLlamaConfig(const GgufFile& file);

// Takes the file; errors do not name it, which OpenModel() does.
absl::StatusOr<std::unique_ptr<ModelSource>> MakeGgufLlamaSource(std::unique_ptr<GgufFile> file);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_LLAMA_H_
