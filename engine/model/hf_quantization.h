// quantization_config of a config.json: the quantisation of a Hugging Face folder's matrices.
// hf_fp8.h, hf_int4.h and hf_stacked_experts.h convert them.
#ifndef HYDRANT_ENGINE_MODEL_HF_QUANTIZATION_H_
#define HYDRANT_ENGINE_MODEL_HF_QUANTIZATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/hf_fields.h"

namespace hydrant {

struct HfQuantization {
  enum class Method : uint8_t {
    kNone,
    kFp8,   // "fp8", and "compressed-tensors" of format "float-quantized"
    kGptq,  // "gptq", four bits
    kAwq,   // "awq", four bits, layout "gemm"
    kMxfp4  // "mxfp4", experts only
  };
  Method method = Method::kNone;
  // kFp8: a scale for each block of block_rows x block_cols; 0: for each row, or for the whole
  // matrix, according to the shape of the scales.
  int block_rows = 0;
  int block_cols = 0;
  // kGptq, kAwq: columns that share a scale; 0: all.
  int group_size = 0;
  int zero_offset = 0;  // kGptq: added to each stored zero point
};

// Reads `root`'s quantization_config, if present. Errors name the field; an unknown field is
// refused. Quantisation of activations is ignored: they stay fp32.
absl::Status ReadHfQuantization(HfFields& root, HfQuantization* quantization);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_QUANTIZATION_H_
