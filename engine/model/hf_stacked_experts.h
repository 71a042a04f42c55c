// Matrices of all experts in one tensor, as GPT-OSS's folders have them: x_blocks and x_scales
// (MXFP4), or x of floats [experts, inputs, outputs], the other way round; biases are x_bias. A
// family knows them as "x.weight" and "x.bias". Stateless; any thread may call.
#ifndef HYDRANT_ENGINE_MODEL_HF_STACKED_EXPERTS_H_
#define HYDRANT_ENGINE_MODEL_HF_STACKED_EXPERTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor.h"

namespace hydrant {

// [experts, outputs, inputs]. blocks: [experts, outputs, inputs / 32, 16] bytes, of which each
// holds two neighbours, the first in its low half; scales: [experts, outputs, inputs / 32]
// exponents (OCP Microscaling Formats 1.0, section 5.2).
absl::StatusOr<TensorView> Mxfp4View(const std::string& name, const RawTensor& blocks,
                                     const RawTensor& scales);
// Of floats [experts, inputs, outputs].
absl::StatusOr<TensorView> TransposedView(const std::string& name, const RawTensor& tensor);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_STACKED_EXPERTS_H_
