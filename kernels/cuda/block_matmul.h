// Products of few rows with weights in tiles (kernels/cuda/tiles.h), reading each block type from
// its own bits: y[i, j] (+)= sum over k of x[i, k] W[j, k], + bias[j].
//
// x is bf16 and W stays quantized: products of bf16 and small integers are exact, sums and scales
// are fp32. Results equal those of the dequantized fp32 weights up to the order of the sums and,
// for types with unsigned quants, an error of 2^-17 of a block's scale times the sum of |x|. The
// order depends only on the shape of W and the number of multiprocessors, not on the other rows.
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
  int m = 0;                    // W is read once per 64 rows
  float* y = nullptr;           // [m, y_stride]; the first `rows` columns are written
  size_t y_stride = 0;
  bool accumulate = false;
  const float* bias = nullptr;  // [rows]; null: none
  // As in MatmulArgs; rows of squares have x_parts and y_parts parts.
  uint16_t* y_bf16 = nullptr;  // [m, y_stride], instead of y
  bool gated = false;          // into y_bf16
  Activation activation = Activation::kSilu;
  bool rotated = false;  // into rope.q, k and v; not gated
  RopeSplitArgs rope;
  SplitNorm x_norm, y_norm;  // y_norm.rows: [m, y_stride]
  int x_parts = 0, y_parts = 0;
  // Partial sums shared by blocks: PartialBytes(), and one counter per 128 rows,
  // zero before and after.
  float* partials = nullptr;
  unsigned* counters = nullptr;
  // With experts (kernels/ops/experts.h) W holds `experts` matrices of `rows` rows, a multiple of
  // 32, and the rows of x and y are places. Without experts these fields are 0 and null.
  int experts = 0;
  int places = 0;
  const int32_t* offsets = nullptr;
  const int32_t* sources = nullptr;
};

size_t PartialBytes(const Context& context, int m);
int NumRowGroups(int rows);  // counters; also enough for a gated product

// Whether the device has enough shared memory.
bool CanMultiplyBlocks(const Context& context, DType dtype);

// REQUIRES: CanMultiplyBlocks()
cudaError_t MultiplyBlocks(const Context& context, DType dtype, const BlockMatmulArgs& args);

// The same for a row-major bf16 weight: args.tiles is its rows, [rows, cols], aligned to 16
// bytes. Without experts.
bool CanMultiplyRows(const Context& context);
cudaError_t MultiplyRows(const Context& context, const BlockMatmulArgs& args);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_BLOCK_MATMUL_H_
