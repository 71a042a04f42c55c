// Matrices of e4m3fn values with fp32 scales beside them, as DeepSeek and Qwen (a scale for each
// block of 128 x 128, weight_scale_inv) and llm-compressor (a scale for each row, or one,
// weight_scale) publish them. A value is the element times its scale, in fp32.
#ifndef HYDRANT_ENGINE_MODEL_HF_FP8_H_
#define HYDRANT_ENGINE_MODEL_HF_FP8_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/hf_quantization.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor.h"

namespace hydrant {

// The matrix as rows made at packing time: kF8_E4M3 if 128 columns in a row share a scale and the
// row length is a multiple of 128, else kF32. Borrows the bytes of `weight`. InvalidArgument names
// the tensor of the scales and its shape.
absl::StatusOr<TensorView> Fp8View(const HfQuantization& quantization, const RawTensor& weight,
                                   const std::string& scale_name, const RawTensor& scale);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FP8_H_
