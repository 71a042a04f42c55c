// y = x * W^T + bias, or y += x * W^T + bias. fp32 in and out, but for x where the backend wants it
// rounded (Backend::ActivationDType); what W is made of decides the arithmetic (kernels/weight.h).
// With a batch-invariant backend a row of y depends on its own row of x alone, whatever m is.
#ifndef HYDRANT_KERNELS_OPS_MATMUL_H_
#define HYDRANT_KERNELS_OPS_MATMUL_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/weight.h"

namespace hydrant {

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
