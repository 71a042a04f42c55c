#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/victim.cuh"
#include "kernels/ops/revise_scores.h"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

// One KV head of one row; if heads share their scores, the first head stands for all.
struct Head {
  const ReviseScoresArgs& args;
  const DecodeRule& rule;
  int slot;
  int index;
  int32_t position;  // of the newest token
  int32_t length;
  int32_t cap;

  __device__ int32_t Position(int32_t entry) const {
    const PageIds* blocks = args.tables.HeadBlocks(slot, args.layer, index);
    return args.pages.positions[PageIndex(args.pages.layout, blocks, entry)];
  }
  __device__ size_t State(int head, int32_t entry) const {
    return StateIndex(args.pages.layout, args.tables.HeadBlocks(slot, args.layer, head), entry);
  }
  __device__ float Average(int32_t entry) const {
    const int heads = args.tables.num_kv_heads;
    double sum = 0.0;
    for (int h = 0; h < heads; ++h) sum += args.pages.scores[State(h, entry)];
    const auto mean = static_cast<float>(sum / heads);
    for (int h = 0; h < heads; ++h) args.pages.scores[State(h, entry)] = mean;
    return mean;
  }
  __device__ float CountBelowMean(int32_t entry, size_t state, bool is_new) const {
    const int32_t steps = StepsCounted(rule, length, cap);
    float& kept =
        BelowMeanCountOf(args.pages, args.tables.HeadBlocks(slot, args.layer, index), entry);
    float count = steps <= 1 || is_new ? 0.0f : kept;
    if (steps >= 1 && IsBelowMean(args.pages.scores[state], length)) count += 1.0f;
    kept = count;
    return -count;
  }
  // Computes and stores the entry's new score.
  __device__ float Revise(int32_t entry, int32_t at) const {
    if (rule.revision == Revision::kLayerMean) return Average(entry);
    const size_t state = State(index, entry);
    const float score = rule.revision == Revision::kRandom
                            ? RandomScore(rule.seed, args.layer, index, position + 1, at)
                            : CountBelowMean(entry, state, at == position);
    args.pages.scores[state] = score;
    return score;
  }
};

// One block per (row, head); if a row's heads share their scores, the first head's block does all.
__global__ void ReviseScoresKernel(ReviseScoresArgs args) {
  __shared__ VictimCandidate shared[kThreads / kWarpSize];
  const int row = static_cast<int>(blockIdx.x), index = static_cast<int>(blockIdx.y);
  const int slot = args.slots[row];
  if (slot < 0) return;
  const DecodeRule rule = args.tables.rules[slot];
  const bool shares = rule.revision == Revision::kLayerMean;
  if (rule.revision == Revision::kNone || (shares && index > 0)) return;
  const size_t head_index = args.tables.HeadIndex(slot, args.layer, index);
  const Head head = {args,
                     rule,
                     slot,
                     index,
                     args.positions[row],
                     args.tables.lengths[head_index],
                     args.tables.caps[head_index]};
  VictimCandidate mine = VictimCandidate::None();
  for (int entry = static_cast<int>(threadIdx.x); entry < head.length; entry += kThreads) {
    const int32_t at = head.Position(entry);
    mine.OfferEntry(rule, head.position + 1, entry, at, head.Revise(entry, at));
  }
  if (head.length != head.cap) return;
  const VictimCandidate victim = BlockVictim<kThreads>(mine, shared);
  if (threadIdx.x > 0) return;
  for (int h = 0; h < (shares ? args.tables.num_kv_heads : 1); ++h)
    args.tables.victims[head_index + h] = victim.entry;
}

}  // namespace

cudaError_t ReviseScores(const Context& context, const ReviseScoresArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  return Launch(ReviseScoresKernel, dim3(args.num_rows, args.tables.num_kv_heads), dim3(kThreads),
                0, context.stream, args);
}

}  // namespace hydrant::cuda
