#include "kernels/cuda/block_matmul.cuh"

namespace hydrant::cuda {

HYDRANT_MULTIPLY_FORMAT(kQ2_K)
HYDRANT_MULTIPLY_FORMAT(kQ3_K)
HYDRANT_MULTIPLY_FORMAT(kQ6_K)

}  // namespace hydrant::cuda
