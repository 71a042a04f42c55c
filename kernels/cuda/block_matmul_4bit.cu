#include "kernels/cuda/block_matmul.cuh"

namespace hydrant::cuda {

HYDRANT_MULTIPLY_FORMAT(kQ4_0)
HYDRANT_MULTIPLY_FORMAT(kQ4_1)
HYDRANT_MULTIPLY_FORMAT(kQ4_K)

}  // namespace hydrant::cuda
