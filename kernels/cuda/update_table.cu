#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void UpdateTableKernel(UpdateTableArgs args) {
  WaitForPredecessor();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < args.count) args.blocks[args.updates[i].index] = args.updates[i].block;
}

}  // namespace

cudaError_t UpdateTable(const Context& context, const UpdateTableArgs& args) {
  if (args.count == 0) return cudaSuccess;
  return LaunchOverlapped(UpdateTableKernel, dim3(CeilDiv(args.count, kThreads)), dim3(kThreads), 0,
                          context.stream, args);
}

}  // namespace hydrant::cuda
