// Stored weights to float, one row at a time: the scalar definition of every DType, which faster
// code must equal. Stateless; any thread may call. Block layouts: the ggml project's block_q*
// structures (little endian), computed in float in the order scale * quant (+ or - offset),
// without fused multiply-add.
#ifndef HYDRANT_KERNELS_DEQUANTIZE_H_
#define HYDRANT_KERNELS_DEQUANTIZE_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace hydrant {

// REQUIRES: count is a multiple of BlockElements(dtype); src holds BytesOf(dtype, count)
// bytes, of any alignment.
void DequantizeRow(DType dtype, const uint8_t* src, int64_t count, float* dst);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_DEQUANTIZE_H_
