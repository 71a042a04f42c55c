// Normalisation, rotary embedding and the gated activation of a llama layer. Activations are fp32;
// those that only a matrix product reads may be written in the dtype that it wants
// (Backend::ActivationDType), rounded to nearest even.
#ifndef HYDRANT_KERNELS_ELEMENTWISE_H_
#define HYDRANT_KERNELS_ELEMENTWISE_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace hydrant {

// out = x / sqrt(mean(x^2) + eps) * weight, row by row. out may be x where it is fp32.
struct RmsNormArgs {
  const float* x = nullptr;       // [m, n]
  const float* weight = nullptr;  // [n]
  int m = 0;
  int n = 0;
  float eps = 1e-5f;
  void* out = nullptr;            // [m, n]
  DType out_dtype = DType::kF32;  // or what the backend wants
};

// Splits the fused projection, turns queries and keys by their positions (RoPE) and stores all
// three.
struct RopeSplitArgs {
  const float* qkv =
      nullptr;  // [m, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
  const int32_t* positions = nullptr;  // [m]
  const float* cos = nullptr;          // [max_positions, head_dim / 2]
  const float* sin = nullptr;          // [max_positions, head_dim / 2]
  int m = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  bool interleaved = false;    // pairs (2i, 2i + 1) instead of (i, i + head_dim / 2)
  float* q = nullptr;          // [m, num_heads, head_dim]
  float* k = nullptr;          // row i of head h at k + i * kv_row_stride + h * kv_head_stride
  float* v = nullptr;          // likewise
  int64_t kv_row_stride = 0;   // elements
  int64_t kv_head_stride = 0;  // elements
};

// out[i, j] = silu(gate[i, j]) * up[i, j], where gate and up are the two halves of each row.
struct SwigluArgs {
  const float* gate_up = nullptr;  // [m, 2 * n]
  int m = 0;
  int n = 0;
  void* out = nullptr;            // [m, n]
  DType out_dtype = DType::kF32;  // or what the backend wants
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_ELEMENTWISE_H_
