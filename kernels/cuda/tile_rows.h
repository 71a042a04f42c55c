// Weights in tiles (kernels/cuda/tiles.h), row by row: the values are the same, to the bit, as
// those of kernels/dequantize.h.
#ifndef HYDRANT_KERNELS_CUDA_TILE_ROWS_H_
#define HYDRANT_KERNELS_CUDA_TILE_ROWS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops.h"

namespace hydrant::cuda {

// out: [rows, cols], bf16, aligned to 8 bytes: rounded to nearest, ties to even.
cudaError_t UnpackTiles(cudaStream_t stream, const TiledRows& rows, int cols, uint16_t* out);

// Embed() of those ids that are among the rows.
cudaError_t EmbedTiles(cudaStream_t stream, const TiledRows& rows, const EmbedArgs& args);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_TILE_ROWS_H_
