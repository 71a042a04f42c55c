// One launch per centre: every block first finds the new centre from the previous launch's results,
// then updates its keys' distances to it.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/nearest.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_element.cuh"
#include "kernels/ops/kcenter.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMaxBlocks = kThreads;  // per head: a thread reads one block's result
constexpr int kLeastChunk = 32;

struct Round {
  int number;
  int chunk;              // keys per block
  float* nearest;         // [heads, n] squared distance to the nearest centre; below 0: a centre
  const Nearest* before;  // [heads, blocks] each block's farthest key, distances negated
  Nearest* after;         // the same, from this launch
};

// One warp per key; grid x: keys, y: heads.
__global__ void ApproachKernel(KCenterArgs args, Round round) {
  __shared__ Nearest shared[kWarps];
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int blocks = static_cast<int>(gridDim.x);
  int centre = 0;
  if (round.number > 0) {
    Nearest mine = Nearest::None();
    if (thread < blocks) mine = round.before[head * blocks + thread];
    centre = BlockNearest<kThreads>(mine, shared).index;
  }
  const int64_t first = head * args.kv_head_stride;
  const int64_t from = first + static_cast<int64_t>(centre) * args.head_dim;
  float* nearest = round.nearest + static_cast<int64_t>(head) * args.n;
  float* scores = args.scores + head * args.score_stride;
  const int begin = static_cast<int>(blockIdx.x) * round.chunk;
  const int end = min(begin + round.chunk, args.n);
  Nearest farthest = Nearest::None();
  for (int j = begin + warp; j < end; j += kWarps) {
    const int64_t key = first + static_cast<int64_t>(j) * args.head_dim;
    float sum = 0.0f;
    for (int d = lane; d < args.head_dim; d += kWarpSize) {
      const float difference = LoadElement(args.k, key + d) - LoadElement(args.k, from + d);
      sum = fmaf(difference, difference, sum);
    }
    sum = WarpSum(sum);
    if (lane != 0) continue;
    float distance = round.number == 0 ? INFINITY : nearest[j];
    if (sum < distance) distance = sum;
    if (j == centre) distance = -1.0f;
    nearest[j] = distance;
    if (j == centre) {
      scores[j] = static_cast<float>(args.n - round.number);
    } else if (round.number == 0) {
      scores[j] = 0.0f;
    }
    farthest.Offer({-distance, j});
  }
  farthest = BlockNearest<kThreads>(farthest, shared);
  if (thread == 0) round.after[head * blocks + static_cast<int>(blockIdx.x)] = farthest;
}

}  // namespace

cudaError_t KCenter(const Context& context, const KCenterArgs& args) {
  Round round = {};
  round.chunk = std::max(kLeastChunk, CeilDiv(args.n, kMaxBlocks));
  const int blocks = CeilDiv(args.n, round.chunk), heads = args.num_kv_heads;
  ScratchLayout layout;
  const size_t nearest = layout.Add<float>(static_cast<size_t>(heads) * args.n);
  const size_t even = layout.Add<Nearest>(static_cast<size_t>(heads) * blocks);
  const size_t odd = layout.Add<Nearest>(static_cast<size_t>(heads) * blocks);
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  round.nearest = At<float>(scratch, nearest);
  for (; round.number < args.centres && error == cudaSuccess; ++round.number) {
    round.before = At<Nearest>(scratch, round.number % 2 == 0 ? odd : even);
    round.after = At<Nearest>(scratch, round.number % 2 == 0 ? even : odd);
    error =
        Launch(ApproachKernel, dim3(blocks, heads), dim3(kThreads), 0, context.stream, args, round);
  }
  return error;
}

}  // namespace hydrant::cuda
