#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/latest_tokens.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void KeepLatestKernel(LatestTokensArgs args) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < args.num_rows && args.slots[i] >= 0) args.latest[args.slots[i]] = args.tokens[i];
}

__global__ void TakeLatestKernel(LatestTokensArgs args) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.num_rows || args.slots[i] < 0 || args.tokens[i] != UINT32_MAX) return;
  const uint32_t latest = args.latest[args.slots[i]];
  args.tokens[i] = latest == UINT32_MAX ? 0 : latest;
}

cudaError_t Run(void (*kernel)(LatestTokensArgs), const Context& context,
                const LatestTokensArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  return Launch(kernel, dim3(CeilDiv(args.num_rows, kThreads)), dim3(kThreads), 0, context.stream,
                args);
}

}  // namespace

cudaError_t KeepLatest(const Context& context, const LatestTokensArgs& args) {
  return Run(KeepLatestKernel, context, args);
}

cudaError_t TakeLatest(const Context& context, const LatestTokensArgs& args) {
  return Run(TakeLatestKernel, context, args);
}

}  // namespace hydrant::cuda
