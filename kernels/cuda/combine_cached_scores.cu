// One block per head.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/combine_cached_scores.h"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void CombineCachedScoresKernel(CombineCachedScoresArgs args) {
  const SequenceTables& tables = args.tables;
  const int layer = static_cast<int>(blockIdx.x) / tables.num_kv_heads;
  const int h = static_cast<int>(blockIdx.x) % tables.num_kv_heads;
  const PageIds* blocks = tables.HeadBlocks(args.slot, layer, h);
  const int length = tables.lengths[tables.HeadIndex(args.slot, layer, h)];
  for (int entry = static_cast<int>(threadIdx.x); entry < length; entry += kThreads) {
    const size_t index = StateIndex(args.pages.layout, blocks, entry);
    float score = args.weight_score * args.pages.scores[index];
    score += args.weight_second * SecondScoreOf(args.pages, blocks, entry);
    args.pages.scores[index] = score;
  }
}

}  // namespace

cudaError_t CombineCachedScores(const Context& context, const CombineCachedScoresArgs& args) {
  const int heads = args.tables.num_layers * args.tables.num_kv_heads;
  return Launch(CombineCachedScoresKernel, dim3(heads), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
