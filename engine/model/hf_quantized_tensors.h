// Maps the tensors of a Hugging Face folder, where a quantised matrix is several tensors, to the
// families' names, where it is "x.weight": x.qweight, x.qzeros, x.scales and x.g_idx (GPTQ, AWQ);
// x.weight beside x.weight_scale_inv or x.weight_scale (fp8); x_blocks and x_scales (MXFP4). It
// also maps tensors that hold the matrices of all experts (hf_stacked_experts.h). Stateless; any
// thread may call.
#ifndef HYDRANT_ENGINE_MODEL_HF_QUANTIZED_TENSORS_H_
#define HYDRANT_ENGINE_MODEL_HF_QUANTIZED_TENSORS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/hf_quantization.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor.h"

namespace hydrant {

// The tensors of a folder as stored.
struct RawTensors {
  std::function<bool(const std::string& name)> has;
  std::function<absl::StatusOr<RawTensor>(const std::string& name)> find;
};

// Whether `name`, or its quantised form, is present.
bool HasTensor(const HfQuantization& quantization, const RawTensors& tensors,
               const std::string& name);

// The tensor of a family's name, converted from its quantised form if there is one. NotFound if it
// is missing.
absl::StatusOr<TensorView> FindTensorOf(const HfQuantization& quantization,
                                        const RawTensors& tensors, const std::string& name);

// The families' names of the tensors in a folder. Skips the parts of a quantised matrix, and the
// zero biases that AutoGPTQ writes for layers without a bias.
absl::StatusOr<std::vector<std::string>> FamilyNames(const HfQuantization& quantization,
                                                     const RawTensors& tensors,
                                                     const std::vector<std::string>& present);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_QUANTIZED_TENSORS_H_
