#include "kernels/cuda/block_matmul.cuh"

namespace hydrant::cuda {

HYDRANT_MULTIPLY_FORMAT(kQ8_0)
HYDRANT_MULTIPLY_FORMAT(kF8_E4M3)

}  // namespace hydrant::cuda
