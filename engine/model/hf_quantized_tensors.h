// Between a Hugging Face folder, whose quantised matrices are several tensors each, and the
// families, which know each by the name "x.weight": x.qweight, x.qzeros, x.scales and x.g_idx
// (GPTQ, AWQ); x.weight beside x.weight_scale_inv or x.weight_scale (fp8); x_blocks and x_scales
// (MXFP4). So are the matrices of all experts in one (hf_stacked_experts.h). Stateless; any thread
// may call.
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

// The tensors of a folder as they lie there.
struct RawTensors {
  std::function<bool(const std::string& name)> has;
  std::function<absl::StatusOr<RawTensor>(const std::string& name)> find;
};

// Whether `name`, or what it was quantised to, is there.
bool HasTensor(const HfQuantization& quantization, const RawTensors& tensors,
               const std::string& name);

// The tensor of a family's name, made of what it was quantised to, if it was. NotFound where it is
// missing.
absl::StatusOr<TensorView> FindTensorOf(const HfQuantization& quantization,
                                        const RawTensors& tensors, const std::string& name);

// The families' names of what a folder holds. What belongs to a quantised matrix has none of its
// own, nor has a bias of zeros beside one, which AutoGPTQ writes for layers that have no bias.
absl::StatusOr<std::vector<std::string>> FamilyNames(const HfQuantization& quantization,
                                                     const RawTensors& tensors,
                                                     const std::vector<std::string>& present);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_QUANTIZED_TENSORS_H_
