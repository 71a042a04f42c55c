// The decode kernel. One block processes up to `chunk` entries of one (row, KV head), in four
// passes over shared memory: logits, weights, values, scores. A longer head is split over
// several blocks; each leaves its part in scratch, and the last to finish joins the parts. A
// separate kernel scores such heads (decode_scores.cuh). Block boundaries depend only on the
// head's length and the chunk.
//
// Products (decode_products_*.cuh) implement the two passes that read keys and values:
//
//   kDType         of the pages
//   kBlocksPerSm   blocks per multiprocessor that the registers allow
//   kTile          weights are padded with zeros to a multiple of this many entries
//   Plan           lays out shared memory; joined_rows: query heads with values summed at once
//   StoreQueries   writes the group's queries, times `scale`, to shared memory
//   Logits         weights[h, e] = q[h] k[e] for all query heads of the group, all entries of the
//                  block
//   Values(g)      joined[warp, h, d] = this warp's part of the sum of weights[g + h, e] v[e, d],
//                  for the query heads [g, g + joined_rows)
#ifndef HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/decode_entry.cuh"
#include "kernels/cuda/decode_join.cuh"
#include "kernels/cuda/decode_rolling.cuh"
#include "kernels/cuda/decode_softmax.cuh"
#include "kernels/cuda/page_row.cuh"
#include "kernels/cuda/ptx.cuh"

namespace hydrant::cuda {

template <typename Products>
class DecodeBlock {
 public:
  __device__ DecodeBlock(const DecodeLaunch& launch, const DecodeUnit& unit,
                         const DecodeShared& shared)
      : l_(launch),
        u_(unit),
        pages_(launch.args.pages),
        rule_(launch.args.tables.rules[unit.slot]),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        softmax_(launch, unit, shared),
        products_(launch, unit, shared) {
    // Read before any block of the head can change it; visible to all threads
    // after the next barrier.
    if (rule_.rolling && thread_ == 0)
      RankAbove() = u_.grows ? u_.length : pages_.positions[DataSlot(l_, u_, u_.new_entry)];
  }

  __device__ void Run() {
    Prepare();
    if (rule_.rolling) {
      RollingLogits<Products::kDType>(l_, u_, s_, RankAbove());
    } else {
      products_.Logits();
    }
    __syncthreads();
    if (l_.args.softcap != 0.0f) softmax_.CapLogits();
    if (u_.splits > 1 && NeedsWeights()) softmax_.KeepLogits();
    softmax_.Weights(RoundUpToTile(u_.count));
    if (softmax_.HasSinks() && u_.splits == 1) softmax_.CountSinks();
    for (int g = 0; g < l_.group; g += l_.joined_rows) {
      products_.Values(g);
      __syncthreads();
      StoreValues(g);
    }
    if (u_.splits > 1) {
      StorePart();
    } else {
      FinishWhole();
    }
  }

  // Every block of the head calls this, including blocks without entries: the head's length may
  // change only after all have read it.
  __device__ void Finish() {
    if (l_.max_splits > 1) {
      if (!IsLastOfHead(l_, u_.unit, l_.max_splits)) return;
      if (u_.splits > 1) JoinParts();
    }
    if (u_.grows && thread_ == 0 && !l_.scores_follow)
      l_.args.tables.lengths[u_.head_index] = u_.length;
  }

 private:
  __device__ static int RoundUpToTile(int entries) {
    return (entries + Products::kTile - 1) / Products::kTile * Products::kTile;
  }
  // In a rolling head, ranks above this decrease by one. In shared memory: a register
  // would cost every head.
  __device__ static int32_t& RankAbove() {
    __shared__ int32_t rank_above;
    return rank_above;
  }

  // Page slots, the new entry, the queries. Beyond the last entry, a tile repeats that entry.
  __device__ void Prepare() {
    for (int i = thread_; i < RoundUpToTile(u_.count); i += kDecodeThreads)
      s_.index[i] = DataSlot(l_, u_, u_.begin + min(i, u_.count - 1));
    const int at = u_.new_entry - u_.begin;
    if (at >= 0 && at < u_.count) StoreNewEntry<Products::kDType>(l_, u_, rule_);
    const int head_dim = pages_.layout.head_dim;
    const float scale = l_.args.scale * kLog2E;
    const float* q = l_.args.q + (static_cast<size_t>(u_.row) * l_.args.num_heads +
                                  static_cast<size_t>(u_.head) * l_.group) *
                                     head_dim;
    products_.StoreQueries(q, scale);
    __syncthreads();
  }

  // Adds the warps' sums in warp order and stores them in the output or in this split's part.
  __device__ void StoreValues(int g) {
    const int head_dim = pages_.layout.head_dim;
    for (int i = thread_; i < l_.joined_rows * head_dim; i += kDecodeThreads) {
      const int h = g + i / head_dim, d = i % head_dim;
      if (h >= l_.group) continue;
      float sum = 0.0f;
      for (int warp = 0; warp < kDecodeWarps; ++warp)
        sum += s_.joined[(warp * l_.joined_rows + h - g) * l_.dim_padded + d];
      if constexpr (IsTransformed(Products::kDType)) sum = TransformInWarp(sum) * kFromPage;
      if (u_.splits > 1) {
        l_.part_out[PartIndex(static_cast<int>(blockIdx.x), h) * head_dim + d] = sum;
      } else {
        const float scale = u_.weighted
                                ? Exp2(fminf(softmax_.NumeratorMaximum(h) - softmax_.Maximum(h),
                                             DecodeSoftmax::kMaxExcess))
                                : 1.0f;
        StoreHeadOutput(l_, u_, h, d, sum * scale / softmax_.Sum(h));
      }
    }
    __syncthreads();  // joined can be reused
  }
  __device__ size_t PartIndex(int split, int h) const {
    return (static_cast<size_t>(u_.unit) * l_.max_splits + split) * l_.group + h;
  }
  __device__ bool NeedsWeights() const { return rule_.scored && !rule_.by_position; }

  __device__ void StorePart() {
    for (int h = thread_; h < l_.group; h += kDecodeThreads) {
      const size_t part = PartIndex(static_cast<int>(blockIdx.x), h);
      l_.part_max[part] = softmax_.Maximum(h);
      l_.part_sum[part] = softmax_.Sum(h);
      if (u_.weighted) l_.part_numerator_max[part] = softmax_.NumeratorMaximum(h);
    }
  }

  __device__ void JoinParts() {
    const auto part = [&](int split) { return u_.unit * l_.max_splits + split; };
    DecodeJoin(l_, u_, s_, softmax_, u_.splits, part).Run();
    if (l_.scores_follow && rule_.rolling && thread_ == 0) l_.rank_above[u_.unit] = RankAbove();
  }

  // Scores the whole head and, if it is full, picks the next victim.
  __device__ void FinishWhole() {
    __shared__ VictimCandidate candidates[kDecodeWarps];
    if (l_.scores_follow && thread_ == 0)
      l_.head_sum[static_cast<size_t>(u_.unit) * l_.group] = 0.0f;
    // Reciprocals of the sums; `joined` is no longer in use.
    for (int h = thread_; h < l_.group; h += kDecodeThreads) s_.joined[h] = 1.0f / softmax_.Sum(h);
    __syncthreads();
    if (!rule_.scored) return;
    const VictimCandidate mine = ScoreEntries(
        l_, u_, rule_, rule_.rolling ? RankAbove() : 0, [&](int i) { return s_.index[i]; },
        [&](int h, int i) { return s_.shares[h * l_.weight_stride() + i] * s_.joined[h]; });
    if (u_.length != l_.args.tables.caps[u_.head_index]) return;
    const VictimCandidate victim = BlockVictim<kDecodeThreads>(mine, candidates);
    if (thread_ == 0) l_.args.tables.victims[u_.head_index] = victim.entry;
  }

  const DecodeLaunch& l_;
  const DecodeUnit& u_;
  const KvPages& pages_;
  const DecodeRule rule_;
  const DecodeShared& s_;
  const int thread_;
  DecodeSoftmax softmax_;
  Products products_;
};

template <typename Products>
__global__ void __launch_bounds__(kDecodeThreads, Products::kBlocksPerSm)
    DecodeKernel(const __grid_constant__ DecodeLaunch launch) {
  WaitForPredecessor();
  if (launch.args.slots[blockIdx.z] < 0) return;  // padding
  const DecodeUnit unit(launch);
  // Outside the block object: an object with pointers into itself is not kept in registers.
  const DecodeShared shared(DynamicShared<float>(), launch, unit.weighted);
  DecodeBlock<Products> block(launch, unit, shared);
  if (unit.count > 0) block.Run();
  block.Finish();
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_
