// Updates a head's scores in a decode step (kernels/kv_pages.h) and picks the next victim. A head
// that one block attends to completely is scored by that block. For other heads the logits are
// kept: scores are known only after all parts of a head are done.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_SCORES_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_SCORES_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/decode_rolling.cuh"
#include "kernels/cuda/victim.cuh"
#include "kernels/victim.h"

namespace hydrant::cuda {

// Index of an entry's key, value and position.
__device__ inline uint32_t DataSlot(const DecodeLaunch& launch, const DecodeUnit& unit, int entry) {
  const int block_size = launch.args.pages.layout.block_size;
  const PageIds* blocks = launch.args.tables.HeadBlocks(unit.slot, launch.args.layer, unit.head);
  return static_cast<uint32_t>(blocks[entry / block_size].data * block_size + entry % block_size);
}

// State lines are far more numerous than pages, so their indices exceed 32 bits.
__device__ inline float* ScoreAt(const DecodeLaunch& launch, const DecodeUnit& unit, int entry) {
  const KvPages& pages = launch.args.pages;
  const PageIds* blocks = launch.args.tables.HeadBlocks(unit.slot, launch.args.layer, unit.head);
  return pages.scores + StateIndex(pages.layout, blocks, entry);
}

__device__ inline float* LogWeightsAt(const DecodeLaunch& launch, const DecodeUnit& unit,
                                      int entry) {
  const PageIds* blocks = launch.args.tables.HeadBlocks(unit.slot, launch.args.layer, unit.head);
  return LogWeightsOf(launch.args.pages, blocks, entry);
}

// Adds one query head's weight on an entry.
__device__ inline float ReduceWeight(GroupReduce reduce, float so_far, float weight) {
  return reduce == GroupReduce::kMax            ? fmaxf(so_far, weight)
         : reduce == GroupReduce::kSumOfSquares ? fmaf(weight, weight, so_far)
                                                : so_far + weight;
}

// Stores an entry's new score (and rank, in rolling heads) and offers it as victim. `weight`: over
// all query heads, as reduced by ReduceWeight().
__device__ inline void ScoreEntry(const DecodeLaunch& launch, const DecodeUnit& unit,
                                  const DecodeRule& rule, int entry, int32_t position, float score,
                                  float weight, int32_t* position_at, float* score_at,
                                  VictimCandidate* candidate) {
  const int32_t next_position = rule.rolling ? unit.length : launch.args.positions[unit.row] + 1;
  const float heads = rule.reduce == GroupReduce::kMean ? static_cast<float>(launch.group) : 1.0f;
  if (rule.rolling) *position_at = position;
  score = rule.by_position ? static_cast<float>(position)
                           : rule.decay * score + rule.gain * (weight / heads);
  if (!rule.by_position) *score_at = score;
  candidate->OfferEntry(rule, next_position, entry, position, score);
}

// Rescores this block's entries. weight(h, i): entry unit.begin + i's share of query head h's
// attention; data_slot(i): its DataSlot. Returns the best victim among the thread's entries.
template <typename Weight, typename Slot>
__device__ VictimCandidate ScoreEntries(const DecodeLaunch& launch, const DecodeUnit& unit,
                                        const DecodeRule& rule, int32_t rank_above, Slot data_slot,
                                        Weight weight) {
  const KvPages& pages = launch.args.pages;
  VictimCandidate mine = VictimCandidate::None();
  // Loads of several entries are in flight together; past the last entry a thread reloads its own.
  constexpr int kAtOnce = 4;
  for (int first = static_cast<int>(threadIdx.x); first < unit.count;
       first += kAtOnce * kDecodeThreads) {
    int at[kAtOnce];
    uint32_t slots[kAtOnce];
    float* stored[kAtOnce];
    int32_t positions[kAtOnce];
    float scores[kAtOnce], weights[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      at[i] = min(first + i * kDecodeThreads, unit.count - 1);
      slots[i] = data_slot(at[i]);
      stored[i] = ScoreAt(launch, unit, unit.begin + at[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      positions[i] = __ldcg(&pages.positions[slots[i]]);
      scores[i] = rule.by_position ? 0.0f : __ldcg(stored[i]);
    }
#pragma unroll 1
    for (int h = 0; h < launch.group && !rule.by_position; ++h) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        weights[i] = ReduceWeight(rule.reduce, weights[i], weight(h, at[i]));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kDecodeThreads >= unit.count) continue;
      const int entry = unit.begin + at[i];
      ScoreEntry(launch, unit, rule, entry,
                 rule.rolling ? RankAfter(unit, entry, positions[i], rank_above) : positions[i],
                 scores[i], weights[i], &pages.positions[slots[i]], stored[i], &mine);
    }
  }
  return mine;
}

// Whether the other `blocks` - 1 blocks of the head have finished; if so, their results are
// visible. Counts in launch.splits_done, which is reset to zero by the last block.
__device__ inline bool IsLastOfHead(const DecodeLaunch& launch, int unit, int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  const auto most = static_cast<unsigned>(blocks) - 1;
  if (threadIdx.x == 0) last = atomicInc(&launch.splits_done[unit], most) == most;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// An entry's share of query head h's attention, from its kept logit. Bypasses L1 (__ldcg), because
// other blocks may have written the logit.
__device__ inline float KeptShare(const DecodeLaunch& launch, int unit, int h, int entry) {
  const size_t head = static_cast<size_t>(unit) * launch.group + h;
  return Exp2(__ldcg(&launch.kept_logits[launch.LogitIndex(unit, h, entry)]) -
              __ldcg(&launch.head_max[head])) /
         __ldcg(&launch.head_sum[head]);
}

// Kernel for heads with pending scores: converts kept logits to scores, one block per chunk.
class SplitScores {
 public:
  __device__ explicit SplitScores(const DecodeLaunch& launch)
      : l_(launch), u_(launch), rule_(launch.args.tables.rules[u_.slot]) {}

  __device__ void Run() {
    const bool scores = rule_.scored && l_.head_sum[static_cast<size_t>(u_.unit) * l_.group] > 0.0f;
    if (scores && u_.count > 0) Score();
    // The head's length may change only after all blocks have read it.
    if (!IsLastOfHead(l_, u_.unit, l_.max_splits) || threadIdx.x != 0) return;
    if (scores && u_.length == l_.args.tables.caps[u_.head_index]) StoreVictim();
    if (u_.grows) l_.args.tables.lengths[u_.head_index] = u_.length;
  }

 private:
  __device__ void Score() {
    __shared__ VictimCandidate candidates[kDecodeWarps];
    const int32_t rank_above = rule_.rolling ? l_.rank_above[u_.unit] : 0;
    const auto weight = [&](int h, int i) { return KeptShare(l_, u_.unit, h, u_.begin + i); };
    const auto slot = [&](int i) { return DataSlot(l_, u_, u_.begin + i); };
    const VictimCandidate mine = BlockVictim<kDecodeThreads>(
        ScoreEntries(l_, u_, rule_, rank_above, slot, weight), candidates);
    if (threadIdx.x == 0) PartVictims()[blockIdx.x] = mine;
  }
  // Bypasses L1: other blocks wrote these in this launch.
  __device__ void StoreVictim() const {
    VictimCandidate best = VictimCandidate::None();
    for (int split = 0; split < u_.splits; ++split) {
      const VictimCandidate* part = PartVictims() + split;
      best.Offer({__ldcg(&part->score), __ldcg(&part->position), __ldcg(&part->entry)});
    }
    l_.args.tables.victims[u_.head_index] = best.entry;
  }
  __device__ VictimCandidate* PartVictims() const {
    return static_cast<VictimCandidate*>(l_.part_victims) +
           static_cast<size_t>(u_.unit) * l_.max_splits;
  }

  const DecodeLaunch& l_;
  const DecodeUnit u_;
  const DecodeRule rule_;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_SCORES_CUH_
