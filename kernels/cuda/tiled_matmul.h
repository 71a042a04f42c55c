// Operations with weights in tiles (kernels/cuda/tiles.h), and products of a few rows with
// row-major ones: which way a product goes.
#ifndef HYDRANT_KERNELS_CUDA_TILED_MATMUL_H_
#define HYDRANT_KERNELS_CUDA_TILED_MATMUL_H_

#include <cuda_runtime.h>

#include "kernels/cuda/ops.h"

namespace hydrant::cuda {

// Matmul(), bias and all. Few rows are multiplied from tiles (kernels/cuda/block_matmul.h), and so
// are all rows where results must not depend on the batch; of many rows the weight is unpacked to
// bf16 first, which is then read by the library's product.
cudaError_t MatmulTiles(const Context& context, const MatmulArgs& args);

// Matmul() by the same kernel with a weight that is not in tiles, where context.fuses_products.
bool MultipliesRows(const Context& context, const CudaWeight& weight, int m);
cudaError_t MatmulRows(const Context& context, const MatmulArgs& args);

// ExpertMatmul() from tiles, where CanMultiplyExperts(); x of args is bf16.
bool CanMultiplyExperts(const Context& context, const ExpertMatmulArgs& args);
cudaError_t ExpertMatmulTiles(const Context& context, const ExpertMatmulArgs& args);

// The whole weight, row-major, bf16, in context.operands.
cudaError_t UnpackWeight(const Context& context, const CudaWeight& weight, const void** unpacked);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_TILED_MATMUL_H_
