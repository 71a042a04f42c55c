// The config.json of a Hugging Face model folder.
#ifndef HYDRANT_ENGINE_MODEL_HF_CONFIG_H_
#define HYDRANT_ENGINE_MODEL_HF_CONFIG_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/hf_quantization.h"
#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"
#include "kernels/dtype.h"

namespace hydrant {

struct HfConfig {
  ModelConfig model;                 // validated; name is empty unless the file gives one
  DType weight_dtype = DType::kF32;  // torch_dtype (dtype in newer files); for dummy weights only
  double initializer_range = 0.02;
  HfQuantization quantization;
};

// Parses the families of hf_families.h. Refuses, by name, any field that would change the
// arithmetic in a way not implemented.
absl::StatusOr<HfConfig> ParseHfConfig(std::string_view json_text);
absl::StatusOr<HfConfig> ReadHfConfig(const std::string& path);  // errors name the path

// The tensor names of the configuration's family.
const TensorNames& HuggingFaceNames(const ModelConfig& config);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_CONFIG_H_
