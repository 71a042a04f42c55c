// Products of few rows with weights in tiles (kernels/cuda/tiles.h), each type of blocks from its
// own bits: y[i, j] (+)= sum over k of x[i, k] W[j, k], + bias[j].
//
// x is bf16, W as its blocks have it: products of bf16 and small integers are exact, sums and
// scales are fp32. So the values are those of the dequantised fp32 weights, but for the order of
// the sums and, of types whose quants are not signed, an error of 2^-17 of a block's scale times
// the sum of |x|. The order depends on the shape of W and the number of multiprocessors alone, not
// on the other rows.
#ifndef HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_H_
#define HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ops.h"
#include "kernels/dtype.h"
#include "kernels/ops/matmul.h"

namespace hydrant::cuda {

struct BlockMatmulArgs {
  const uint8_t* tiles = nullptr;
  int rows = 0;                 // of W
  int cols = 0;                 // a multiple of 8
  const uint16_t* x = nullptr;  // [m, cols], bf16, aligned to 16 bytes
  int m = 0;                    // W is read once for each 64
  float* y = nullptr;           // [m, y_stride], of which the first `rows` columns
  size_t y_stride = 0;
  bool accumulate = false;
  const float* bias = nullptr;  // [rows]; null: none
  // As MatmulArgs has them; rows of squares have so many parts.
  uint16_t* y_bf16 = nullptr;  // [m, y_stride], in the place of y
  bool gated = false;          // into y_bf16
  Activation activation = Activation::kSilu;
  bool rotated = false;  // into rope.q, k and v; not gated
  RopeSplitArgs rope;
  SplitNorm x_norm, y_norm;  // y_norm.rows: [m, y_stride]
  int x_parts = 0, y_parts = 0;
  // Where a block's part of a sum waits for the others: PartialBytes(), and a counter for each 128
  // rows, which is zero before and after.
  float* partials = nullptr;
  unsigned* counters = nullptr;
  // Of experts (kernels/ops/experts.h): W holds `experts` matrices of `rows` rows, a multiple of
  // 32, and x and y are of places. Null, or no experts: none of this.
  int experts = 0;
  int places = 0;
  const int32_t* offsets = nullptr;
  const int32_t* sources = nullptr;
};

size_t PartialBytes(const Context& context, int m);
int NumRowGroups(int rows);  // counters; as many are enough where the product is gated

// Whether the device has the shared memory for it.
bool CanMultiplyBlocks(const Context& context, DType dtype);

// REQUIRES: CanMultiplyBlocks()
cudaError_t MultiplyBlocks(const Context& context, DType dtype, const BlockMatmulArgs& args);

// The same with a bf16 weight as the library has it: args.tiles is its rows, [rows, cols], aligned
// to 16 bytes. Without experts.
bool CanMultiplyRows(const Context& context);
cudaError_t MultiplyRows(const Context& context, const BlockMatmulArgs& args);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_H_
