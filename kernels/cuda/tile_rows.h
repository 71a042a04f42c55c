// Weights in tiles (kernels/cuda/tiles.h) converted row by row: bit-identical to
// kernels/dequantize.h.
#ifndef HYDRANT_KERNELS_CUDA_TILE_ROWS_H_
#define HYDRANT_KERNELS_CUDA_TILE_ROWS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops.h"

namespace hydrant::cuda {

// out: [rows, cols], bf16, aligned to 8 bytes: rounded to nearest even.
cudaError_t UnpackTiles(cudaStream_t stream, const TiledRows& rows, int cols, uint16_t* out);

// Embed() for the ids within these rows.
cudaError_t EmbedTiles(cudaStream_t stream, const TiledRows& rows, const EmbedArgs& args);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_TILE_ROWS_H_
