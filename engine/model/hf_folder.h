// A model in a Hugging Face folder: config.json and model.safetensors, or several safetensors
// files named by model.safetensors.index.json.
#ifndef HYDRANT_ENGINE_MODEL_HF_FOLDER_H_
#define HYDRANT_ENGINE_MODEL_HF_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/model_source.h"

namespace hydrant {

absl::StatusOr<std::unique_ptr<ModelSource>> OpenHfFolder(const std::string& folder);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FOLDER_H_
