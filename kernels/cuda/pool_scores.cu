#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/pool_scores.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

// One thread per position; grid y: heads. Neighbouring windows overlap in the cache.
__global__ void PoolScoresKernel(PoolScoresArgs args) {
  const int j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (j >= args.n) return;
  const float* scores = args.scores + blockIdx.y * args.score_stride;
  const int half = args.kernel / 2;
  const int begin = max(0, j - half), end = min(args.n, j + half + 1);
  double sum = 0.0;
  float highest = -INFINITY;
  for (int i = begin; i < end; ++i) {
    sum += scores[i];
    if (scores[i] > highest) highest = scores[i];
  }
  args.out[blockIdx.y * args.out_stride + j] =
      args.pooling == Pooling::kMax ? highest : static_cast<float>(sum / args.kernel);
}

}  // namespace

cudaError_t PoolScores(const Context& context, const PoolScoresArgs& args) {
  if (args.n == 0) return cudaSuccess;
  return Launch(PoolScoresKernel, dim3(CeilDiv(args.n, kThreads), args.num_kv_heads),
                dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
