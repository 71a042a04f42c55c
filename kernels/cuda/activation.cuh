// Activation functions of the form x * sigmoid (kernels/ops/elementwise.h).
#ifndef HYDRANT_KERNELS_CUDA_ACTIVATION_CUH_
#define HYDRANT_KERNELS_CUDA_ACTIVATION_CUH_

#include <cuda_runtime.h>

namespace hydrant::cuda {

__device__ inline float Silu(float x) { return x / (1.0f + expf(-x)); }

// x * (1 + tanh(u)) / 2, written as a sigmoid to avoid cancellation.
__device__ inline float GeluTanh(float x) {
  constexpr float kSqrtTwoOverPi = 0.79788456080286536f;
  const float u = kSqrtTwoOverPi * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * u));
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_ACTIVATION_CUH_
