// y = x * W^T + bias, or y += x * W^T + bias. fp32 in and out, but for x where the backend wants it
// rounded (Backend::ActivationDType); what W is made of decides the arithmetic (kernels/weight.h).
// With a batch-invariant backend a row of y depends on its own row of x alone, whatever m is.
#ifndef HYDRANT_KERNELS_OPS_MATMUL_H_
#define HYDRANT_KERNELS_OPS_MATMUL_H_

#include <cstdint>
#include <optional>

#include "kernels/dtype.h"
#include "kernels/ops/elementwise.h"
#include "kernels/weight.h"

namespace hydrant {

// The RMS norm of rows (RmsNormArgs) as two halves of products: the one that makes the rows
// multiplies them by the norm's weights and adds up their squares, the ones that read them divide
// each result by the root of the mean of squares plus eps.
struct SplitNorm {
  // Columns that share a sum of squares.
  static constexpr int kPartColumns = 128;
  static constexpr int Parts(int n) { return (n + kPartColumns - 1) / kPartColumns; }

  const float* weight = nullptr;  // [n]; only where rows are made
  float eps = 1e-5f;              // only where they are read
  uint16_t* rows = nullptr;       // [m, n], bf16: rows times weight, not divided
  double* squares = nullptr;      // [m, Parts(n)]
};

struct MatmulArgs {
  const void* x = nullptr;      // [m, weight.cols()]
  DType x_dtype = DType::kF32;  // kF32, or what the backend wants beside this weight
  int m = 0;                    // rows; 0 does nothing
  const Weight* weight = nullptr;
  float* y = nullptr;           // [m, weight.rows()]
  bool accumulate = false;      // y += instead of y =
  const float* bias = nullptr;  // [weight.rows()], added last; null: none
  // In the place of y: each sum rounded once to bf16. Only where Backend::ResultDType() says so;
  // neither with accumulate nor with a bias.
  uint16_t* y_bf16 = nullptr;  // [m, weight.rows()]

  // Only where Backend::FusesProducts() says so; x is bf16, sums are rounded to bf16 once, at last.
  // x is x_norm->rows: results are divided before anything is added.
  std::optional<SplitNorm> x_norm = {};
  // The rows of y, as they are at last, also go to y_norm. REQUIRES: y
  std::optional<SplitNorm> y_norm = {};
  // y_bf16[i, j] = activation(y[i, j]) * y[i, j + n], [m, n], where n is half of the weight's rows.
  // kSilu or kGeluTanh; without a bias.
  std::optional<Activation> gate = {};
  // y is rope->qkv, which is split and rotated at once and not kept; y and rope->qkv are null.
  // Neither with accumulate nor with y_norm. REQUIRES: CanRotate(rope->head_dim); no precision is
  // of blocks
  std::optional<RopeSplitArgs> rope = {};
  // Rows of y that are summed together hold whole heads.
  static constexpr bool CanRotate(int head_dim) {
    return head_dim % 2 == 0 && SplitNorm::kPartColumns % head_dim == 0;
  }
};

// out[i] = scale * row ids[i] of the table, as fp32; or out[i] += that.
struct EmbedArgs {
  const uint32_t* ids = nullptr;  // [m], each < table.rows()
  int m = 0;
  const Weight* table = nullptr;
  float* out = nullptr;     // [m, table.cols()]
  bool accumulate = false;  // out += instead of out =
  float scale = 1.0f;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_MATMUL_H_
