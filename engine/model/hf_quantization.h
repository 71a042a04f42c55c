// quantization_config of a config.json: how the matrices of a Hugging Face folder were quantised.
// What becomes of them is in hf_fp8.h, hf_int4.h and hf_stacked_experts.h.
#ifndef HYDRANT_ENGINE_MODEL_HF_QUANTIZATION_H_
#define HYDRANT_ENGINE_MODEL_HF_QUANTIZATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/hf_fields.h"

namespace hydrant {

struct HfQuantization {
  enum class Method : uint8_t {
    kNone,
    kFp8,   // "fp8", and "compressed-tensors" of the format "float-quantized"
    kGptq,  // "gptq", four bits
    kAwq,   // "awq", four bits, the layout "gemm"
    kMxfp4  // "mxfp4", of experts
  };
  Method method = Method::kNone;
  // kFp8: a scale for each block of so many rows and columns of a matrix; 0: for each row, or for
  // the whole matrix, as the tensor of the scales has it.
  int block_rows = 0;
  int block_cols = 0;
  // kGptq, kAwq: columns that share a scale; 0: all of them.
  int group_size = 0;
  int zero_offset = 0;  // kGptq: what is added to a zero point that is read
};

// Reads `root`'s quantization_config, where there is one. Errors name the field; one that is not
// known is refused. What a file says of activations is left aside: they stay fp32.
absl::Status ReadHfQuantization(HfFields& root, HfQuantization* quantization);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_QUANTIZATION_H_
