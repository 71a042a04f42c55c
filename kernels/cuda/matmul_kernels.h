#ifndef HYDRANT_KERNELS_CUDA_MATMUL_KERNELS_H_
#define HYDRANT_KERNELS_CUDA_MATMUL_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops.h"

namespace hydrant::cuda {

// Rounds to nearest even. x is aligned to 16 bytes, out to 8.
cudaError_t RoundToBF16(cudaStream_t stream, const float* x, int64_t count, uint16_t* out);

// Converts `count` bf16 elements to floats, in context.operands.
cudaError_t WidenBF16(const Context& context, const void* x, int64_t count, const void** widened);

// y[i, j] += bias[j]. y: [m, n].
cudaError_t AddBias(cudaStream_t stream, const float* bias, int m, int n, float* y);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_MATMUL_KERNELS_H_
