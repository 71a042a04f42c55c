#include "kernels/cuda/block_matmul.cuh"

namespace hydrant::cuda {

HYDRANT_MULTIPLY_FORMAT(kIQ4_NL)
HYDRANT_MULTIPLY_FORMAT(kIQ4_XS)
HYDRANT_MULTIPLY_FORMAT(kMXFP4)

}  // namespace hydrant::cuda
