// Matrices of all experts in one tensor, as in GPT-OSS's folders: x_blocks and x_scales (MXFP4), or
// floats x [experts, inputs, outputs], transposed; biases are x_bias. Families name them "x.weight"
// and "x.bias". Stateless; any thread may call.
#ifndef HYDRANT_ENGINE_MODEL_HF_STACKED_EXPERTS_H_
#define HYDRANT_ENGINE_MODEL_HF_STACKED_EXPERTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor.h"

namespace hydrant {

// Returns [experts, outputs, inputs]. blocks: [experts, outputs, inputs / 32, 16] bytes, each with
// two neighbouring elements, the first in the low half; scales: [experts, outputs, inputs / 32]
// exponents (OCP Microscaling Formats 1.0, section 5.2).
absl::StatusOr<TensorView> Mxfp4View(const std::string& name, const RawTensor& blocks,
                                     const RawTensor& scales);
// `tensor`: floats [experts, inputs, outputs].
absl::StatusOr<TensorView> TransposedView(const std::string& name, const RawTensor& tensor);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_STACKED_EXPERTS_H_
