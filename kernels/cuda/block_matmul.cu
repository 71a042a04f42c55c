#include <algorithm>

#include "kernels/cuda/block_matmul.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tiles.h"

namespace hydrant::cuda {

// Defined in kernels/cuda/block_matmul.cuh; each type is compiled separately.
template <DType kDType>
bool CanMultiplyFormat(const Context& context);
template <DType kDType>
cudaError_t MultiplyFormat(const Context& context, const BlockMatmulArgs& args);

namespace {
constexpr int kGroupRows = 128;
constexpr int kMaxTokens = 64;  // per launch
}  // namespace

int NumRowGroups(int rows) { return CeilDiv(rows, kGroupRows); }

size_t PartialBytes(const Context& context, int m) {
  const int tokens = std::min(kMaxTokens, CeilDiv(m, 8) * 8);
  int widest = 8;
  while (widest < tokens) widest *= 2;
  return sizeof(float) * 2 * context.num_sms * kGroupRows * widest;
}

bool CanMultiplyBlocks(const Context& context, DType dtype) {
  return WithTileType(dtype, [&](auto type) { return CanMultiplyFormat<type()>(context); });
}

cudaError_t MultiplyBlocks(const Context& context, DType dtype, const BlockMatmulArgs& args) {
  return WithTileType(dtype, [&](auto type) { return MultiplyFormat<type()>(context, args); });
}

}  // namespace hydrant::cuda
