#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/ops/last_tokens.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void StoreLastTokensKernel(LastTokensArgs args) {
  WaitForPredecessor();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < args.num_rows && args.slots[i] >= 0) args.last_tokens[args.slots[i]] = args.tokens[i];
}

__global__ void ReadLastTokensKernel(LastTokensArgs args) {
  WaitForPredecessor();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.num_rows || args.slots[i] < 0 || args.tokens[i] != UINT32_MAX) return;
  const uint32_t last = args.last_tokens[args.slots[i]];
  args.tokens[i] = last == UINT32_MAX ? 0 : last;
}

cudaError_t Run(void (*kernel)(LastTokensArgs), const Context& context,
                const LastTokensArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  return LaunchOverlapped(kernel, dim3(CeilDiv(args.num_rows, kThreads)), dim3(kThreads), 0,
                          context.stream, args);
}

}  // namespace

cudaError_t StoreLastTokens(const Context& context, const LastTokensArgs& args) {
  return Run(StoreLastTokensKernel, context, args);
}

cudaError_t ReadLastTokens(const Context& context, const LastTokensArgs& args) {
  return Run(ReadLastTokensKernel, context, args);
}

}  // namespace hydrant::cuda
