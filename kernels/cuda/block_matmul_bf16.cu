#include "kernels/cuda/block_matmul.cuh"

namespace hydrant::cuda {

HYDRANT_MULTIPLY_FORMAT(kBF16)

}  // namespace hydrant::cuda
