#ifndef HYDRANT_KERNELS_CUDA_MATMUL_KERNELS_H_
#define HYDRANT_KERNELS_CUDA_MATMUL_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace hydrant::cuda {

// Rounds to nearest, ties to even. x is aligned to 16 bytes, out to 8.
cudaError_t RoundToBF16(cudaStream_t stream, const float* x, int64_t count, uint16_t* out);

// y[i, j] += bias[j]. y: [m, n].
cudaError_t AddBias(cudaStream_t stream, const float* bias, int m, int n, float* y);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_MATMUL_KERNELS_H_
