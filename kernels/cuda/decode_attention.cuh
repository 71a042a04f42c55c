// The decode kernel: one block works on up to `chunk` entries of one (row, KV head), in four passes
// over shared memory: logits, weights, values, scores. A head that is longer is split over several
// blocks; each leaves its part in scratch, and the one that ends last joins the parts. Scores of
// such heads follow in a kernel of their own (decode_scores.cuh). Where a block begins and ends
// depends on the head's own length and on the chunk alone.
//
// The two passes that read keys and values are the Products' (decode_products_*.cuh):
//
//   kDType         of the pages
//   kBlocksPerSm   that the registers leave room for
//   kTile          weights are padded with zeros to a multiple of this many entries
//   Plan           lays out shared memory; joined_rows: query heads whose values are summed at once
//   StoreQueries   the group's queries, times `scale`, to shared memory
//   Logits         weights[h, e] = q[h] k[e] for all query heads of the group, all entries of the
//                  block
//   Values(g)      joined[warp, h, d] = this warp's part of the sum of weights[g + h, e] v[e, d],
//                  for the query heads [g, g + joined_rows)
#ifndef HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/decode_rolling.cuh"
#include "kernels/cuda/decode_scores.cuh"
#include "kernels/cuda/page_row.cuh"
#include "kernels/cuda/softcap.cuh"

namespace hydrant::cuda {

__device__ inline float LowerBoundLogit() { return -1e30f; }

template <typename Products>
class DecodeBlock {
 public:
  __device__ DecodeBlock(const DecodeLaunch& launch, const DecodeUnit& unit,
                         const DecodeShared& shared)
      : l_(launch),
        u_(unit),
        pages_(launch.args.pages),
        rule_(launch.args.tables.rules[unit.slot]),
        weighted_(unit.weighted),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        products_(launch, unit, shared) {
    // Read before any block of the head may have changed it; seen by all after the next barrier.
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
    if (l_.args.softcap != 0.0f) CapLogits();
    if (weighted_) {
      Weights<true>();
    } else {
      Weights<false>();
    }
    if (HasSinks() && u_.splits == 1) CountSinks();
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

  // Every block of the head comes here, those without entries too: only when all have read the
  // head's length may it change.
  __device__ void Finish() {
    if (l_.max_splits > 1) {
      if (!IsLastOfHead(l_, u_)) return;
      if (u_.splits > 1) JoinParts();
    }
    if (u_.grows && thread_ == 0 && !l_.scores_follow)
      l_.args.tables.lengths[u_.head_index] = u_.length;
  }

 private:
  __device__ static int RoundUpToTile(int entries) {
    return (entries + Products::kTile - 1) / Products::kTile * Products::kTile;
  }
  // In a rolling head ranks greater than this go down by one. In shared memory: a register would be
  // one less for all heads.
  __device__ static int32_t& RankAbove() {
    __shared__ int32_t rank_above;
    return rank_above;
  }

  // Page slots, the new entry, the queries. What is read past the last entry of a tile is that
  // entry once more.
  __device__ void Prepare() {
    for (int i = thread_; i < RoundUpToTile(u_.count); i += kDecodeThreads)
      s_.index[i] = DataSlot(l_, u_, u_.begin + min(i, u_.count - 1));
    const int at = u_.new_entry - u_.begin;
    if (at >= 0 && at < u_.count) StoreNewEntry(DataSlot(l_, u_, u_.new_entry));
    const int head_dim = pages_.layout.head_dim;
    const float scale = l_.args.scale * kLog2E;
    const float* q = l_.args.q + (static_cast<size_t>(u_.row) * l_.args.num_heads +
                                  static_cast<size_t>(u_.head) * l_.group) *
                                     head_dim;
    products_.StoreQueries(q, scale);
    __syncthreads();
  }

  __device__ void StoreNewEntry(uint32_t slot) {
    const int head_dim = pages_.layout.head_dim;
    const size_t from = static_cast<size_t>(u_.unit) * head_dim;
    for (int d = thread_; d < head_dim; d += kDecodeThreads) {
      const size_t to = static_cast<size_t>(slot) * head_dim + d;
      StoreRowElement(Products::kDType, pages_.keys, to, l_.args.k[from + d]);
      StoreRowElement(Products::kDType, pages_.values, to, l_.args.v[from + d]);
    }
    if (thread_ != 0) return;
    // Ranks are moved when all blocks have read them (UpdateScores()).
    if (!rule_.rolling) pages_.positions[slot] = l_.args.positions[u_.row];
    if (rule_.ScoresEntries()) *ScoreAt(l_, u_, u_.new_entry) = 0.0f;
    if (!weighted_) return;
    float* log_weights = LogWeightsAt(l_, u_, u_.new_entry);
    log_weights[0] = log_weights[1] = 0.0f;
  }

  // Of the entries whose logits this thread reads in Weights(), and no other thread.
  __device__ void CapLogits() const {
    const float cap = l_.args.softcap * kLog2E;
    for (int h = 0; h < l_.group; ++h) {
      for (int i = thread_; i < u_.count; i += kDecodeThreads) {
        float& logit = s_.weights[h * l_.weight_stride() + i];
        logit = SoftCap(logit, cap);
      }
    }
  }

  // Logits become weights relative to the block's maximum; zeros up to a whole tile. Leaves maximum
  // and sum of query head h in Maximum(h), Sum(h). With log weights, these and s_.shares are the
  // denominator's; the numerator has a maximum of its own, so that neither can be lost beside the
  // other.
  template <bool kWeighted>
  __device__ void Weights() {
    const int warp = thread_ / kWarpSize, lane = thread_ % kWarpSize;
    for (int h = 0; h < l_.group; ++h) {
      float highest = LowerBoundLogit(), highest_numerator = LowerBoundLogit();
      for (int i = thread_; i < u_.count; i += kDecodeThreads) {
        const LogitPair logits = LogitsAt<kWeighted>(h, i);
        highest = fmaxf(highest, logits.denominator);
        if (kWeighted) highest_numerator = fmaxf(highest_numerator, logits.numerator);
      }
      highest = WarpMax(highest);
      if (lane == 0) s_.by_warp[h * kDecodeWarps + warp] = highest;
      if (!kWeighted) continue;
      highest_numerator = WarpMax(highest_numerator);
      if (lane == 0) s_.by_warp[(2 * l_.weight_rows + h) * kDecodeWarps + warp] = highest_numerator;
    }
    __syncthreads();
    const int padded = RoundUpToTile(u_.count);
    for (int h = 0; h < l_.weight_rows; ++h) {
      const bool exists = h < l_.group;
      const float highest = exists ? Maximum(h) : 0.0f;
      const float highest_numerator = kWeighted && exists ? NumeratorMaximum(h) : highest;
      float sum = 0.0f;
      for (int i = thread_; i < padded; i += kDecodeThreads) {
        LogitPair logits = {-INFINITY, -INFINITY};
        if (i < u_.count && exists) logits = LogitsAt<kWeighted>(h, i);
        const float share = Exp2(logits.denominator - highest);
        const int at = h * l_.weight_stride() + i;
        s_.shares[at] = share;
        if (kWeighted) s_.weights[at] = Exp2(logits.numerator - highest_numerator);
        sum += share;
      }
      sum = WarpSum(sum);
      if (lane == 0) s_.by_warp[(l_.weight_rows + h) * kDecodeWarps + warp] = sum;
    }
    __syncthreads();
  }
  struct LogitPair {
    float numerator, denominator;
  };
  template <bool kWeighted>
  __device__ LogitPair LogitsAt(int h, int i) const {
    const float logit = s_.weights[h * l_.weight_stride() + i];
    if constexpr (kWeighted) {
      const float* log_weights = LogWeightsAt(l_, u_, u_.begin + i);
      return {fmaf(log_weights[0], kLog2E, logit), fmaf(log_weights[1], kLog2E, logit)};
    } else {
      return {logit, logit};
    }
  }
  static constexpr float kMostExcess = kMostLogExcess * kLog2E;
  __device__ float NumeratorMaximum(int h) const {
    if (!weighted_) return Maximum(h);
    float highest = LowerBoundLogit();
    for (int w = 0; w < kDecodeWarps; ++w)
      highest = fmaxf(highest, s_.by_warp[(2 * l_.weight_rows + h) * kDecodeWarps + w]);
    return highest;
  }
  __device__ float Maximum(int h) const {
    float highest = LowerBoundLogit();
    for (int w = 0; w < kDecodeWarps; ++w)
      highest = fmaxf(highest, s_.by_warp[h * kDecodeWarps + w]);
    return highest;
  }
  __device__ float Sum(int h) const {
    float sum = 0.0f;
    for (int w = 0; w < kDecodeWarps; ++w)
      sum += s_.by_warp[(l_.weight_rows + h) * kDecodeWarps + w];
    return sum;
  }

  __device__ bool HasSinks() const { return l_.args.sink_logits != nullptr; }
  // The sink logit of query head h, as a power of two.
  __device__ float Sink(int h) const {
    return l_.args.sink_logits[u_.head * l_.group + h] * kLog2E;
  }
  // Sinks join the sums of a whole head; of a split one they do when its parts are joined. Sums are
  // not read before the next barrier. A sink far above all entries leaves them nothing; bounded, it
  // is still a number.
  __device__ void CountSinks() {
    constexpr float kMost = 120.0f;
    for (int h = thread_; h < l_.group; h += kDecodeThreads)
      s_.by_warp[(l_.weight_rows + h) * kDecodeWarps] += Exp2(fminf(Sink(h) - Maximum(h), kMost));
  }

  // The warps' sums, added in their order, go to the output or to this split's part.
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
        const float scale =
            weighted_ ? Exp2(fminf(NumeratorMaximum(h) - Maximum(h), kMostExcess)) : 1.0f;
        StoreOutput(h, d, sum * scale / Sum(h));
      }
    }
    __syncthreads();  // joined is free again
  }
  __device__ void StoreOutput(int h, int d, float value) const {
    const size_t query_head = static_cast<size_t>(u_.row) * l_.args.num_heads +
                              static_cast<size_t>(u_.head) * l_.group + h;
    StoreElement(l_.args.out_dtype, l_.args.out, query_head * pages_.layout.head_dim + d, value);
  }
  __device__ size_t PartIndex(int split, int h) const {
    return (static_cast<size_t>(u_.unit) * l_.max_splits + split) * l_.group + h;
  }
  __device__ size_t WeightIndex(int h, int entry) const {
    return (static_cast<size_t>(u_.unit) * l_.group + h) * l_.args.max_scored_entries + entry;
  }
  __device__ bool NeedsWeights() const { return rule_.scored && !rule_.by_position; }

  __device__ void StorePart() {
    for (int h = thread_; h < l_.group; h += kDecodeThreads) {
      const size_t part = PartIndex(static_cast<int>(blockIdx.x), h);
      l_.part_max[part] = Maximum(h);
      l_.part_sum[part] = Sum(h);
      if (weighted_) l_.part_numerator_max[part] = NumeratorMaximum(h);
    }
    if (!NeedsWeights()) return;
    for (int h = 0; h < l_.group; ++h) {
      for (int i = thread_; i < u_.count; i += kDecodeThreads)
        l_.part_weights[WeightIndex(h, u_.begin + i)] = s_.shares[h * l_.weight_stride() + i];
    }
  }

  // What other blocks wrote is read past this multiprocessor's own cache (__ldcg), which may hold
  // the line as it was when a neighbour's data was read from it.
  __device__ void JoinParts() {
    // factor[h, split] turns a split's weights into shares of the whole, numerator_factor its sums
    // of values. A warp per query head.
    float* factor = s_.shares;
    float* numerator_factor = s_.weights;
    const int lane = thread_ % kWarpSize;
    for (int h = thread_ / kWarpSize; h < l_.group; h += kDecodeWarps) {
      float highest = HasSinks() ? Sink(h) : LowerBoundLogit();
      for (int split = lane; split < u_.splits; split += kWarpSize)
        highest = fmaxf(highest, __ldcg(&l_.part_max[PartIndex(split, h)]));
      highest = WarpMax(highest);
      float numerator_top = highest;
      if (weighted_) {
        float highest_numerator = LowerBoundLogit();
        for (int split = lane; split < u_.splits; split += kWarpSize)
          highest_numerator =
              fmaxf(highest_numerator, __ldcg(&l_.part_numerator_max[PartIndex(split, h)]));
        numerator_top = fmaxf(highest, WarpMax(highest_numerator) - kMostExcess);
      }
      float sum = 0.0f;
      for (int split = lane; split < u_.splits; split += kWarpSize) {
        const float scale = Exp2(__ldcg(&l_.part_max[PartIndex(split, h)]) - highest);
        factor[h * u_.splits + split] = scale;
        if (weighted_)
          numerator_factor[h * u_.splits + split] =
              Exp2(__ldcg(&l_.part_numerator_max[PartIndex(split, h)]) - numerator_top);
        sum += __ldcg(&l_.part_sum[PartIndex(split, h)]) * scale;
      }
      sum = WarpSum(sum);
      if (HasSinks()) sum += Exp2(Sink(h) - highest);
      for (int split = lane; split < u_.splits; split += kWarpSize) {
        factor[h * u_.splits + split] /= sum;
        if (weighted_) numerator_factor[h * u_.splits + split] /= sum;
        if (l_.scores_follow) l_.part_factor[PartIndex(split, h)] = factor[h * u_.splits + split];
      }
    }
    if (l_.scores_follow && rule_.rolling && thread_ == 0) l_.rank_above[u_.unit] = RankAbove();
    __syncthreads();
    const int head_dim = pages_.layout.head_dim;
    for (int i = thread_; i < l_.group * head_dim; i += kDecodeThreads) {
      const int h = i / head_dim, d = i % head_dim;
      float sum = 0.0f;
#pragma unroll 8
      for (int split = 0; split < u_.splits; ++split)
        sum += __ldcg(&l_.part_out[PartIndex(split, h) * head_dim + d]) *
               numerator_factor[h * u_.splits + split];
      StoreOutput(h, d, sum);
    }
  }

  // Scores of the whole head, and the next victim of a full one.
  __device__ void FinishWhole() {
    __shared__ VictimCandidate candidates[kDecodeWarps];
    // The sums' reciprocals; `joined` is free by now.
    for (int h = thread_; h < l_.group; h += kDecodeThreads) s_.joined[h] = 1.0f / Sum(h);
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
  const bool weighted_;
  const DecodeShared& s_;
  const int thread_;
  Products products_;
};

template <typename Products>
__global__ void __launch_bounds__(kDecodeThreads, Products::kBlocksPerSm)
    DecodeKernel(const __grid_constant__ DecodeLaunch launch) {
  if (launch.args.slots[blockIdx.z] < 0) return;  // padding
  const DecodeUnit unit(launch);
  // Beside the block, not in it: an object that points into itself would not be kept in registers.
  const DecodeShared shared(DynamicShared<float>(), launch, unit.weighted);
  DecodeBlock<Products> block(launch, unit, shared);
  if (unit.count > 0) block.Run();
  block.Finish();
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_
