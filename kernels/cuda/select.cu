// A block per head: the threshold that keeps the right number of entries by a radix search over the
// scores' bits, then one ordered pass that writes the positions above it.
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/radix.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;

__global__ void SelectKernel(SelectArgs args) {
  __shared__ RadixSearch<int> search;
  __shared__ int sums[kWarps + 1];
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const float* scores = args.scores + head * args.score_stride;
  int32_t* kept = args.kept + head * args.kept_stride;
  const int begin = min(args.sinks, args.n), end = max(begin, args.n - args.recent);
  const int wanted = args.keep[head] - (args.n - (end - begin));

  // Of the unprotected: all keys above `threshold`, and of those equal to it the last `of_equal`.
  search.Find(wanted, [&](auto visit) {
    for (int i = begin + thread; i < end; i += kThreads) visit(OrderedKey(scores[i]), 1);
  });
  const uint32_t threshold = search.threshold();
  const int of_equal = search.remaining();
  const int first_equal = search.equal() - of_equal;

  int written = 0, equal_before = 0;
  for (int tile = 0; tile < args.n; tile += kThreads) {
    const int i = tile + thread;
    const bool open = i >= begin && i < end;
    const uint32_t key = open ? OrderedKey(scores[i]) : 0;
    const bool equal = open && wanted > 0 && key == threshold;
    int equals = 0, keeps = 0;
    const int rank = equal_before + BlockExclusiveSum<kWarps>(equal ? 1 : 0, sums, &equals);
    const bool keep =
        i < args.n &&
        (!open || (wanted > 0 && (key > threshold || (equal && rank >= first_equal))));
    const int place = written + BlockExclusiveSum<kWarps>(keep ? 1 : 0, sums, &keeps);
    if (keep) kept[place] = i;
    written += keeps;
    equal_before += equals;
  }
}

}  // namespace

cudaError_t Select(const Context& context, const SelectArgs& args) {
  return Launch(SelectKernel, dim3(args.num_kv_heads), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
