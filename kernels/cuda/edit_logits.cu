#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void BiasLogitsKernel(BiasLogitsArgs args) {
  WaitForPredecessor();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.num_biases) return;
  const TokenBias bias = args.biases[i];
  args.logits[static_cast<size_t>(args.rows[i]) * args.vocab + bias.token] += bias.bias;
}

// One thread per token.
__global__ void MaskLogitsKernel(MaskLogitsArgs args) {
  WaitForPredecessor();
  const int token = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (token >= args.vocab) return;
  const size_t row = blockIdx.y;
  const uint32_t word = args.masks[row * MaskWords(args.vocab) + token / 32];
  if ((word >> (token % 32) & 1) != 0) return;
  args.logits[static_cast<size_t>(args.rows[row]) * args.vocab + token] = -INFINITY;
}

}  // namespace

cudaError_t BiasLogits(const Context& context, const BiasLogitsArgs& args) {
  if (args.num_biases == 0) return cudaSuccess;
  const dim3 grid(CeilDiv(args.num_biases, kThreads));
  return LaunchOverlapped(BiasLogitsKernel, grid, dim3(kThreads), 0, context.stream, args);
}

cudaError_t MaskLogits(const Context& context, const MaskLogitsArgs& args) {
  if (args.num_masks == 0) return cudaSuccess;
  const dim3 grid(CeilDiv(args.vocab, kThreads), args.num_masks);
  return LaunchOverlapped(MaskLogitsKernel, grid, dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
