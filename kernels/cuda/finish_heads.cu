#include "kernels/cuda/finish_heads.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/victim.cuh"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

// One block per head.
__global__ void FinishHeadsKernel(FinishHeadsArgs args) {
  __shared__ VictimCandidate shared[kThreads / kWarpSize];
  const int head = static_cast<int>(blockIdx.x);
  const DecodeRule rule = args.tables.rules[args.slot];
  const size_t head_index = args.tables.HeadIndex(args.slot, args.layer, head);
  const int32_t keep = args.keep[head];
  const int32_t cap = args.growth >= 0 ? keep + args.growth : args.tables.caps[head_index];
  if (threadIdx.x == 0) {
    args.tables.lengths[head_index] = keep;
    args.tables.caps[head_index] = cap;
  }
  if (!rule.scored || keep != cap) return;
  const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, head);
  const int32_t next_position = rule.rolling ? keep : args.next_position;
  VictimCandidate mine = VictimCandidate::None();
  for (int entry = static_cast<int>(threadIdx.x); entry < keep; entry += kThreads) {
    const KvPages& pages = args.pages;
    const int32_t position = pages.positions[PageIndex(pages.layout, blocks, entry)];
    const float score = rule.by_position ? static_cast<float>(position)
                                         : pages.scores[StateIndex(pages.layout, blocks, entry)];
    mine.OfferEntry(rule, next_position, entry, position, score);
  }
  const VictimCandidate victim = BlockVictim<kThreads>(mine, shared);
  if (threadIdx.x == 0) args.tables.victims[head_index] = victim.entry;
}

}  // namespace

cudaError_t FinishHeads(const Context& context, const FinishHeadsArgs& args) {
  return Launch(FinishHeadsKernel, dim3(args.tables.num_kv_heads), dim3(kThreads), 0,
                context.stream, args);
}

}  // namespace hydrant::cuda
