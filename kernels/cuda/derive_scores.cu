#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_element.cuh"
#include "kernels/ops/derive_scores.h"
#include "kernels/random.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

// The same for an arena row, from element `first` on.
__device__ double SquaredLength(const ArenaRows& rows, int64_t first, int dims) {
  double sum = 0.0;
  for (int i = 0; i < dims; ++i) {
    const double x = LoadElement(rows, first + i);
    sum += x * x;
  }
  return sum;
}

// One thread per position, for all heads: out may alias a.
__global__ void DeriveScoresKernel(DeriveScoresArgs args) {
  const int j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (j >= args.n) return;
  float average = 0.0f;
  if (args.step == ScoreStep::kAverageHeads) {
    double sum = 0.0;
    for (int h = 0; h < args.num_kv_heads; ++h) sum += args.a[h * args.stride + j];
    average = static_cast<float>(sum / args.num_kv_heads);
  }
  for (int h = 0; h < args.num_kv_heads; ++h) {
    const int64_t index = h * args.stride + j;
    float score = average;
    if (args.step == ScoreStep::kCombine) {
      score = args.weight_a * args.a[index];
      if (args.b != nullptr) score += args.weight_b * args.b[index];
    } else if (args.step == ScoreStep::kTimesLength) {
      const int64_t row = h * args.row_head_stride + int64_t{j} * args.dims;
      score = args.a[index] * static_cast<float>(sqrt(SquaredLength(args.rows, row, args.dims)));
    } else if (args.step == ScoreStep::kRandom) {
      score = UnitFloat(RandomBits(ScoreSeed(args.seed, args.layer, h), j));
    }
    args.out[index] = score;
  }
}

}  // namespace

cudaError_t DeriveScores(const Context& context, const DeriveScoresArgs& args) {
  if (args.n == 0) return cudaSuccess;
  return Launch(DeriveScoresKernel, dim3(CeilDiv(args.n, kThreads)), dim3(kThreads), 0,
                context.stream, args);
}

}  // namespace hydrant::cuda
