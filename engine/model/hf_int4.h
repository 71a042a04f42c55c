// Matrices of four-bit integers, a scale and a zero point for each group of columns of a row: GPTQ
// (AutoGPTQ's and GPTQModel's files) and AWQ (AutoAWQ's "gemm"). A value is scale * (quant - zero).
//
//   qweight  I32  gptq [cols / 8, rows]: column k in bits 4 (k % 8).. of word k / 8
//                 awq  [cols, rows / 8]: eight rows in a word, in the order of its own
//   qzeros   I32  [groups, rows / 8]; gptq: row r in bits 4 (r % 8).., less one in the first format
//   scales   F16, BF16 or F32 [groups, rows]
//   g_idx    I32  [cols], gptq: the group of each column; may be left out
#ifndef HYDRANT_ENGINE_MODEL_HF_INT4_H_
#define HYDRANT_ENGINE_MODEL_HF_INT4_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/hf_quantization.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor.h"

namespace hydrant {

struct Int4Tensors {
  RawTensor qweight, qzeros, scales;
  std::optional<RawTensor> g_idx;
};

// The matrix as rows made at packing time, in the smallest type that holds every value exactly:
// q4_0 if each zero point is 8, q5_0 with others, f32 if columns of a block belong to several
// groups (desc_act), if a row is not a whole number of blocks, or if a scale does not fit half
// precision. Borrows the tensors' bytes. `name` is the layer's; errors name the tensor.
absl::StatusOr<TensorView> Int4View(const HfQuantization& quantization, const std::string& name,
                                    const Int4Tensors& tensors);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_INT4_H_
