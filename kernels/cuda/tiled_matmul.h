// Operations with weights in tiles (kernels/cuda/tiles.h), and products of a few rows with
// row-major weights: selects the kernel.
#ifndef HYDRANT_KERNELS_CUDA_TILED_MATMUL_H_
#define HYDRANT_KERNELS_CUDA_TILED_MATMUL_H_

#include <cuda_runtime.h>

#include "kernels/cuda/ops.h"

namespace hydrant::cuda {

// Matmul(), including bias. Few rows are multiplied from tiles (kernels/cuda/block_matmul.h); with
// batch-invariant results all rows are. For many rows the weight is first unpacked to bf16 for the
// library's product.
cudaError_t MatmulTiles(const Context& context, const MatmulArgs& args);

// Matmul() by the same kernel with a row-major weight, if context.fuses_products.
bool MultipliesRows(const Context& context, const CudaWeight& weight, int m);
cudaError_t MatmulRows(const Context& context, const MatmulArgs& args);

// ExpertMatmul() from tiles, if CanMultiplyExperts(); args.x is bf16.
bool CanMultiplyExperts(const Context& context, const ExpertMatmulArgs& args);
cudaError_t ExpertMatmulTiles(const Context& context, const ExpertMatmulArgs& args);

// Unpacks the whole weight, row-major, bf16, into context.operands.
cudaError_t UnpackWeight(const Context& context, const CudaWeight& weight, const void** unpacked);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_TILED_MATMUL_H_
