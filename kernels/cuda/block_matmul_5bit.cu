#include "kernels/cuda/block_matmul.cuh"

namespace hydrant::cuda {

HYDRANT_MULTIPLY_FORMAT(kQ5_0)
HYDRANT_MULTIPLY_FORMAT(kQ5_1)
HYDRANT_MULTIPLY_FORMAT(kQ5_K)

}  // namespace hydrant::cuda
