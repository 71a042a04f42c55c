// Normalisation, rotary embedding and the activations of a decoder layer. Rows are fp32. Rows that
// only a matrix product reads may be written in its preferred dtype (Backend::ActivationDType),
// rounded to nearest even.
#ifndef HYDRANT_KERNELS_OPS_ELEMENTWISE_H_
#define HYDRANT_KERNELS_OPS_ELEMENTWISE_H_

#include <cstdint>

#include "kernels/arena_rows.h"
#include "kernels/dtype.h"

namespace hydrant {

// out = x / sqrt(mean(x^2) + eps) * weight, over runs of n elements (Root Mean Square Layer
// Normalization, arXiv 1910.07467, section 4). A row is one run, or `groups` runs side by side that
// share the weight, such as the heads of a projection. out may be x where out_dtype is fp32.
struct RmsNormArgs {
  const float* x = nullptr;       // [m, groups, n]; row i begins at i * row_stride
  const float* weight = nullptr;  // [n]
  int m = 0;
  int n = 0;
  float eps = 1e-5f;
  void* out = nullptr;            // as x
  DType out_dtype = DType::kF32;  // or the backend's choice
  int groups = 1;
  int64_t row_stride = 0;   // elements, in x and out; 0: groups * n
  bool accumulate = false;  // out += instead of out =; REQUIRES: fp32, not in place

  constexpr int64_t RowStride() const {
    return row_stride != 0 ? row_stride : static_cast<int64_t>(groups) * n;
  }
};

// out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row; var is the mean
// squared distance from the mean (Layer Normalization, arXiv 1607.06450, section 3). out may
// be x where out_dtype is fp32.
struct LayerNormArgs {
  const float* x = nullptr;       // [m, n]
  const float* weight = nullptr;  // [n]
  const float* bias = nullptr;    // [n]
  int m = 0;
  int n = 0;
  float eps = 1e-5f;
  void* out = nullptr;            // [m, n]
  DType out_dtype = DType::kF32;  // or the backend's choice
};

// Splits the fused projection, rotates queries and keys by their positions (RoPE) and stores all
// three. The first rotary_dim elements of each head are rotated, the rest is copied.
struct RopeSplitArgs {
  // [m, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
  const float* qkv = nullptr;
  const int32_t* positions = nullptr;  // [m]
  const float* cos = nullptr;          // [max_positions, rotary_dim / 2]
  const float* sin = nullptr;          // [max_positions, rotary_dim / 2]
  int m = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;        // even, at most head_dim; 0: nothing is rotated, no table is read
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  float query_scale = 1.0f;  // of the rotated elements of queries
  // [num_heads + num_kv_heads, head_dim] or null: queries and keys are multiplied by them before
  // keys are rounded. Powers of two, equal for the two elements of a pair.
  const float* factors = nullptr;
  // [num_kv_heads, head_dim] or null: subtracted from keys after that. REQUIRES: null unless
  // kv_precision has blocks
  const float* key_offsets = nullptr;
  // All of one dtype; if it is not fp32, kv_precision is the same, or kE4M3 with kBF16.
  MutableArenaRows q = nullptr;  // [m, num_heads, head_dim]
  MutableArenaRows k = nullptr;  // row i of head h at k + i * kv_row_stride + h * kv_head_stride;
                                 // null: keys and values are not written
  MutableArenaRows v = nullptr;  // the same
  int64_t kv_row_stride = 0;     // elements
  int64_t kv_head_stride = 0;    // elements
  // Keys and values are rounded to this dtype (kernels/page_row.h).
  DType kv_precision = DType::kF32;
  // Queries are rounded to this dtype, before rotation; a block dtype only where
  // they are stored as fp32.
  DType query_precision = DType::kF32;
};

// Functions of one number, except the last (Gaussian Error Linear Units,
// arXiv 1606.08415, section 2).
enum class Activation : uint8_t {
  kRelu,      // max(x, 0)
  kGelu,      // x * P(X <= x), X standard normal: x * (1 + erf(x / sqrt(2))) / 2
  kGeluTanh,  // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2
  kSilu,      // x / (1 + exp(-x))
  kIdentity,  // x
  // Gated only; a function of both numbers, clamped first: gate = min(gate, limit), up in [-limit,
  // limit]; (up + 1) * gate / (1 + exp(-slope * gate)). GPT-OSS's SwiGLU.
  kClampedSwiglu,
};
inline constexpr float kSwigluLimit = 7.0f, kSwigluSlope = 1.702f;

// out[i, j] = activation(x[i, j]); gated, activation(gate[i, j]) * up[i, j] (except
// kClampedSwiglu), where gate and up are the two halves of each row of x (GLU Variants, arXiv
// 2002.05202, section 2). NaN stays NaN.
struct ActivateArgs {
  const float* x = nullptr;          // [m, n]; gated [m, 2 n]
  const uint16_t* x_bf16 = nullptr;  // the same in bf16, instead of x
  Activation activation = Activation::kRelu;
  bool gated = false;
  int m = 0;
  int n = 0;
  void* out = nullptr;            // [m, n]; may be x where it is fp32 and not gated
  DType out_dtype = DType::kF32;  // or the backend's choice
};

// x[i] = cap * tanh(x[i] / cap), within +-cap (Gemma 2, arXiv 2408.00118, section 2).
struct SoftCapArgs {
  float* x = nullptr;  // [m, n]
  int m = 0;
  int n = 0;
  float cap = 0.0f;  // > 0
};

// out[j] += scale * the sum over i of x[i, j]; the order of the sum depends on m alone.
struct SumRowsArgs {
  const float* x = nullptr;  // [m, n]
  int m = 0;
  int n = 0;
  float scale = 1.0f;
  float* out = nullptr;  // [n]
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_ELEMENTWISE_H_
