// Normalisation, rotary embedding and the activations of a decoder layer. Rows are fp32; those that
// only a matrix product reads may be written in the dtype that it wants (Backend::ActivationDType),
// rounded to nearest even.
#ifndef HYDRANT_KERNELS_OPS_ELEMENTWISE_H_
#define HYDRANT_KERNELS_OPS_ELEMENTWISE_H_

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

// out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row, var the mean of the squared
// distances from the mean (Layer Normalization, arXiv 1607.06450, section 3). out may be x where it
// is fp32.
struct LayerNormArgs {
  const float* x = nullptr;       // [m, n]
  const float* weight = nullptr;  // [n]
  const float* bias = nullptr;    // [n]
  int m = 0;
  int n = 0;
  float eps = 1e-5f;
  void* out = nullptr;            // [m, n]
  DType out_dtype = DType::kF32;  // or what the backend wants
};

// Splits the fused projection, rotates queries and keys by their positions (RoPE) and stores all
// three. Of each head the first rotary_dim elements rotate, the rest is copied.
struct RopeSplitArgs {
  const float* qkv =
      nullptr;  // [m, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
  const int32_t* positions = nullptr;  // [m]
  const float* cos = nullptr;          // [max_positions, rotary_dim / 2]
  const float* sin = nullptr;          // [max_positions, rotary_dim / 2]
  int m = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;          // even, at most head_dim; 0: nothing is rotated, no table is read
  bool interleaved = false;    // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  float* q = nullptr;          // [m, num_heads, head_dim]
  float* k = nullptr;          // row i of head h at k + i * kv_row_stride + h * kv_head_stride;
                               // null: keys and values are not wanted
  float* v = nullptr;          // the same
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

// Of one number (Gaussian Error Linear Units, arXiv 1606.08415, section 2).
enum class Activation : uint8_t {
  kRelu,      // max(x, 0)
  kGelu,      // x * P(X <= x), X standard normal: x * (1 + erf(x / sqrt(2))) / 2
  kGeluTanh,  // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2
};

// out[i, j] = activation(x[i, j]). NaN stays NaN.
struct ActivateArgs {
  const float* x = nullptr;  // [m, n]
  Activation activation = Activation::kRelu;
  int m = 0;
  int n = 0;
  void* out = nullptr;            // [m, n]; may be x where it is fp32
  DType out_dtype = DType::kF32;  // or what the backend wants
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_ELEMENTWISE_H_
