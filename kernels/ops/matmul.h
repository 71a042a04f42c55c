// y = x * W^T + bias, or y += x * W^T + bias. Input and output are fp32, except where the
// backend prefers a rounded x (Backend::ActivationDType); the weight's dtype determines the
// arithmetic (kernels/weight.h). With a batch-invariant backend a row of y depends on its own
// row of x alone, for any m.
#ifndef HYDRANT_KERNELS_OPS_MATMUL_H_
#define HYDRANT_KERNELS_OPS_MATMUL_H_

#include <cstdint>
#include <optional>

#include "kernels/dtype.h"
#include "kernels/ops/elementwise.h"
#include "kernels/weight.h"

namespace hydrant {

// The RMS norm of rows (RmsNormArgs) split over two products: the producer multiplies the rows by
// the norm's weights and sums their squares; the consumer divides each result by the root of the
// mean of squares plus eps.
struct SplitNorm {
  // Columns per partial sum of squares.
  static constexpr int kPartColumns = 128;
  static constexpr int Parts(int n) { return (n + kPartColumns - 1) / kPartColumns; }

  const float* weight = nullptr;  // [n]; for the producer only
  float eps = 1e-5f;              // for the consumer only
  uint16_t* rows = nullptr;       // [m, n], bf16: rows times weight, not yet divided
  double* squares = nullptr;      // [m, Parts(n)]
};

struct MatmulArgs {
  const void* x = nullptr;      // [m, weight.cols()]
  DType x_dtype = DType::kF32;  // kF32, or the backend's choice for this weight
  int m = 0;                    // rows; 0 does nothing
  const Weight* weight = nullptr;
  float* y = nullptr;           // [m, weight.rows()]
  bool accumulate = false;      // y += instead of y =
  const float* bias = nullptr;  // [weight.rows()], added last; null: none
  // Output instead of y: each sum rounded once to bf16. Only where Backend::ResultDType() allows
  // it, without accumulate and without a bias.
  uint16_t* y_bf16 = nullptr;  // [m, weight.rows()]

  // Only where Backend::FusesProducts() allows it; x is bf16, and sums are rounded to bf16 once, at
  // the end. x is x_norm->rows: results are divided before any addition.
  std::optional<SplitNorm> x_norm = {};
  // The final rows of y also go to y_norm. REQUIRES: y
  std::optional<SplitNorm> y_norm = {};
  // y_bf16[i, j] = activation(y[i, j]) * y[i, j + n], [m, n], where n is half of the weight's rows.
  // kSilu or kGeluTanh; without a bias.
  std::optional<Activation> gate = {};
  // The product is rope->qkv, which is split and rotated at once and not stored; y and
  // rope->qkv are null. Not with accumulate or y_norm. REQUIRES: CanRotate(rope->head_dim); no
  // block dtype as precision.
  std::optional<RopeSplitArgs> rope = {};
  // Whether a part of kPartColumns columns holds whole heads.
  static constexpr bool CanRotate(int head_dim) {
    return head_dim % 2 == 0 && SplitNorm::kPartColumns % head_dim == 0;
  }
};

// out[i] = scale * row ids[i] of the table, as fp32; with accumulate, out[i] += the same.
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
