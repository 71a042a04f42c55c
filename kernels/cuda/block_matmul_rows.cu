#include "kernels/cuda/block_matmul.cuh"

namespace hydrant::cuda {

bool CanMultiplyRows(const Context& context) { return Fits<RowsOfBF16, 8>(context); }

cudaError_t MultiplyRows(const Context& context, const BlockMatmulArgs& args) {
  return MultiplyWith<RowsOfBF16>(context, args);
}

}  // namespace hydrant::cuda
