// The decode kernel: one block works on up to `chunk` entries of one (row, KV head), in four passes
// over shared memory: logits, weights, values, scores. A head that is longer is split over several
// blocks; each leaves its part in scratch, and the one that ends last joins the parts. Where a
// block begins and ends depends on the head's own length and on the chunk alone.
//
// A team of kLanes lanes reads an entry, kVectors vectors of 16 bytes a lane, four entries at a
// time; kGroup query heads are worked on at once.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_element.cuh"
#include "kernels/cuda/victim.cuh"
#include "kernels/decode_attention.h"

namespace hydrant::cuda {

inline constexpr int kDecodeThreads = 128;
inline constexpr int kDecodeWarps = kDecodeThreads / kWarpSize;
inline constexpr int kEntriesAtOnce = 4;

// One launch. Scratch arrays are indexed by (row * kv_heads + head), called `unit`.
struct DecodeLaunch {
  DecodeAttentionArgs args;
  int group = 0;              // query heads of a KV head
  int group_padded = 0;       // a multiple of the kernel's kGroup
  int dim_padded = 0;         // floats of one query in shared memory
  int chunk = 0;              // a multiple of kEntriesAtOnce
  int max_splits = 0;         // the grid's x
  float* part_out = nullptr;  // [unit, max_splits, group, head_dim]
  float* part_max = nullptr;  // [unit, max_splits, group]
  float* part_sum = nullptr;  // [unit, max_splits, group]
  float* part_weights =
      nullptr;  // [unit, group, max_scored_entries], relative to their split's maximum
  unsigned* splits_done = nullptr;  // [unit], zero before the launch
};

// The floats of dynamic shared memory, in this order.
struct DecodeShared {
  float* q;         // [group_padded, dim_padded], scaled so that logits are powers of two
  float* weights;   // [group_padded, chunk]: logits, then weights
  float* joined;    // [kGroup, dim_padded]
  float* by_warp;   // [2, group_padded, kDecodeWarps]
  uint32_t* index;  // [chunk]: page slot of each entry

  __host__ __device__ static size_t Floats(const DecodeLaunch& launch, int group_at_once) {
    return static_cast<size_t>(launch.group_padded) * launch.dim_padded +
           static_cast<size_t>(launch.group_padded) * launch.chunk +
           static_cast<size_t>(group_at_once) * launch.dim_padded +
           size_t{2} * launch.group_padded * kDecodeWarps + launch.chunk;
  }
  __device__ DecodeShared(float* memory, const DecodeLaunch& launch, int group_at_once) {
    weights = memory;  // first: read by vectors
    q = weights + static_cast<size_t>(launch.group_padded) * launch.chunk;
    joined = q + static_cast<size_t>(launch.group_padded) * launch.dim_padded;
    by_warp = joined + static_cast<size_t>(group_at_once) * launch.dim_padded;
    index = reinterpret_cast<uint32_t*>(by_warp + size_t{2} * launch.group_padded * kDecodeWarps);
  }
};

// What a block works on.
struct DecodeUnit {
  int row, head, unit;
  int slot;
  size_t head_index;
  int32_t length;     // with the new entry
  int32_t new_entry;  // where the new token goes
  bool grows;
  int splits, begin, count;  // entries [begin, begin + count) are this block's

  __device__ explicit DecodeUnit(const DecodeLaunch& launch) {
    const SequenceTables& tables = launch.args.tables;
    row = static_cast<int>(blockIdx.z);
    head = static_cast<int>(blockIdx.y);
    unit = row * tables.num_kv_heads + head;
    slot = launch.args.slots[row];
    head_index = tables.HeadIndex(slot, launch.args.layer, head);
    const int32_t held = tables.lengths[head_index];
    grows = held < tables.caps[head_index];
    length = grows ? held + 1 : held;
    new_entry = grows ? held : tables.victims[head_index];
    splits = (length + launch.chunk - 1) / launch.chunk;
    begin = static_cast<int>(blockIdx.x) * launch.chunk;
    count = min(launch.chunk, length - begin);
  }
};

// One of the sums that a team's lanes make together: sums[i] over the lanes, of which each lane
// keeps as few as can be. Returns the number of the first one that it keeps.
template <int kLanes, int kSums>
__device__ int SumOverTeam(float (&sums)[kSums]) {
  int first = 0;
  int kept = kSums;
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    if (kept > 1) {
      kept /= 2;
      const bool upper = (threadIdx.x & mask) != 0;
#pragma unroll
      for (int i = 0; i < kSums / 2; ++i) {
        if (i >= kept) continue;
        const float give = upper ? sums[i] : sums[i + kept];
        sums[i] = (upper ? sums[i + kept] : sums[i]) + __shfl_xor_sync(kAllLanes, give, mask);
      }
      if (upper) first += kept;
    } else {
      sums[0] += __shfl_xor_sync(kAllLanes, sums[0], mask);
    }
  }
  return first;
}

// Reads the vectors of an entry that belong to this lane of its team.
template <DType kDType, int kLanes, int kVectors, bool kAligned>
struct EntryLoader {
  static constexpr int kElements = PageVector<kDType>::kElements;
  int head_dim;
  int lane;  // within the team

  __device__ int Dim(int vector) const { return (lane + vector * kLanes) * kElements; }
  __device__ void Load(const void* base, uint32_t slot, PageVector<kDType> (&out)[kVectors]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      out[v].Clear();
      if (Dim(v) >= head_dim) continue;
      const size_t from = static_cast<size_t>(slot) * head_dim + Dim(v);
      if constexpr (kAligned) {
        out[v].Load(base, from / kElements);
      } else {
        out[v].LoadElements(base, from, head_dim - Dim(v));
      }
    }
  }
};

__device__ inline float LowerBoundLogit() { return -1e30f; }

template <DType kDType, int kLanes, int kVectors, int kGroup, bool kAligned>
class DecodeBlock {
 public:
  using Vector = PageVector<kDType>;
  static constexpr int kElements = Vector::kElements;
  static constexpr int kTeams = kDecodeThreads / kLanes;
  static constexpr int kStep = kTeams * kEntriesAtOnce;

  __device__ DecodeBlock(const DecodeLaunch& launch, const DecodeUnit& unit)
      : l_(launch),
        u_(unit),
        pages_(launch.args.pages),
        rule_(launch.args.tables.rules[unit.slot]),
        s_(DynamicShared<float>(), launch, kGroup),
        thread_(static_cast<int>(threadIdx.x)),
        team_(thread_ / kLanes),
        load_{launch.args.pages.layout.head_dim, thread_ % kLanes} {}

  __device__ void Run() {
    Prepare();
    for (int g = 0; g < l_.group_padded; g += kGroup) Logits(g);
    __syncthreads();
    Weights();
    for (int g = 0; g < l_.group_padded; g += kGroup) {
      Values(g);
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
      if (!IsLastOfHead()) return;
      if (u_.splits > 1) JoinParts();
    }
    if (u_.grows && thread_ == 0) l_.args.tables.lengths[u_.head_index] = u_.length;
  }

 private:
  // Page slots, the new entry, the queries.
  __device__ void Prepare() {
    const int32_t* blocks = l_.args.tables.HeadBlocks(u_.slot, l_.args.layer, u_.head);
    const int block_size = pages_.layout.block_size;
    for (int i = thread_; i < u_.count; i += kDecodeThreads) {
      const int entry = u_.begin + i;
      s_.index[i] =
          static_cast<uint32_t>(blocks[entry / block_size] * block_size + entry % block_size);
    }
    const int head_dim = pages_.layout.head_dim;
    const float scale = l_.args.scale * 1.4426950408889634f;  // exp(x) = 2^(x log2 e)
    const float* q = l_.args.q + (static_cast<size_t>(u_.row) * l_.args.num_heads +
                                  static_cast<size_t>(u_.head) * l_.group) *
                                     head_dim;
    for (int i = thread_; i < l_.group_padded * l_.dim_padded; i += kDecodeThreads) {
      const int g = i / l_.dim_padded, d = i % l_.dim_padded;
      s_.q[i] = g < l_.group && d < head_dim ? q[g * head_dim + d] * scale : 0.0f;
    }
    __syncthreads();
    const int at = u_.new_entry - u_.begin;
    if (at >= 0 && at < u_.count) StoreNewEntry(s_.index[at]);
    __syncthreads();
  }

  __device__ void StoreNewEntry(uint32_t slot) {
    const int head_dim = pages_.layout.head_dim;
    const size_t from = static_cast<size_t>(u_.unit) * head_dim;
    for (int d = thread_; d < head_dim; d += kDecodeThreads) {
      const size_t to = static_cast<size_t>(slot) * head_dim + d;
      StoreElement(kDType, pages_.keys, to, l_.args.k[from + d]);
      StoreElement(kDType, pages_.values, to, l_.args.v[from + d]);
    }
    if (thread_ != 0) return;
    pages_.positions[slot] = l_.args.positions[u_.row];
    if (rule_.scored) pages_.scores[slot] = 0.0f;
  }

  // Four entries' vectors of this team; zeros beyond the last entry.
  __device__ void LoadEntries(const void* base, int first,
                              Vector (&out)[kEntriesAtOnce][kVectors]) {
#pragma unroll
    for (int e = 0; e < kEntriesAtOnce; ++e) {
      if (first + e < u_.count) {
        load_.Load(base, s_.index[first + e], out[e]);
      } else {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) out[e][v].Clear();
      }
    }
  }

  // weights[g .. g + kGroup) = logits in powers of two.
  __device__ void Logits(int g) {
    float q[kGroup][kVectors][kElements];
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          const int d = load_.Dim(v) + i;
          q[h][v][i] = d < l_.dim_padded ? s_.q[(g + h) * l_.dim_padded + d] : 0.0f;
        }
      }
    }
    for (int tile = 0; tile < u_.count; tile += kStep) {
      const int first = tile + team_ * kEntriesAtOnce;
      Vector k[kEntriesAtOnce][kVectors];
      LoadEntries(pages_.keys, first, k);
      float sums[kEntriesAtOnce * kGroup];
#pragma unroll
      for (int e = 0; e < kEntriesAtOnce; ++e) {
#pragma unroll
        for (int h = 0; h < kGroup; ++h) {
          float sum = 0.0f;
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
#pragma unroll
            for (int i = 0; i < kElements; ++i) sum = fmaf(q[h][v][i], k[e][v][i], sum);
          }
          sums[e * kGroup + h] = sum;
        }
      }
      constexpr int kSums = kEntriesAtOnce * kGroup;
      constexpr int kKept = kSums > kLanes ? kSums / kLanes : 1;
      const int kept = SumOverTeam<kLanes>(sums);
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        const int e = first + (kept + i) / kGroup, h = g + (kept + i) % kGroup;
        if (e < u_.count) s_.weights[h * l_.chunk + e] = sums[i];
      }
    }
  }

  // Logits become weights relative to the block's maximum; zeros up to a whole four. Leaves maximum
  // and sum of query head h in Maximum(h), Sum(h).
  __device__ void Weights() {
    const int warp = thread_ / kWarpSize, lane = thread_ % kWarpSize;
    for (int h = 0; h < l_.group; ++h) {
      float highest = LowerBoundLogit();
      for (int i = thread_; i < u_.count; i += kDecodeThreads)
        highest = fmaxf(highest, s_.weights[h * l_.chunk + i]);
      highest = WarpMax(highest);
      if (lane == 0) s_.by_warp[h * kDecodeWarps + warp] = highest;
    }
    __syncthreads();
    const int padded = (u_.count + kEntriesAtOnce - 1) / kEntriesAtOnce * kEntriesAtOnce;
    for (int h = 0; h < l_.group_padded; ++h) {
      const float highest = h < l_.group ? Maximum(h) : 0.0f;
      float sum = 0.0f;
      for (int i = thread_; i < padded; i += kDecodeThreads) {
        float& weight = s_.weights[h * l_.chunk + i];
        weight = i < u_.count && h < l_.group ? Exp2(weight - highest) : 0.0f;
        sum += weight;
      }
      sum = WarpSum(sum);
      if (lane == 0) s_.by_warp[(l_.group_padded + h) * kDecodeWarps + warp] = sum;
    }
    __syncthreads();
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
      sum += s_.by_warp[(l_.group_padded + h) * kDecodeWarps + w];
    return sum;
  }

  // joined[h] = sum of weight * value, for the query heads [g, g + kGroup).
  __device__ void Values(int g) {
    float sums[kGroup][kVectors][kElements] = {};
    for (int tile = 0; tile < u_.count; tile += kStep) {
      const int first = tile + team_ * kEntriesAtOnce;
      if (first >= u_.count) continue;
      Vector values[kEntriesAtOnce][kVectors];
      LoadEntries(pages_.values, first, values);
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
        const float4 w = *reinterpret_cast<const float4*>(&s_.weights[(g + h) * l_.chunk + first]);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
          for (int i = 0; i < kElements; ++i) {
            float sum = sums[h][v][i];
            sum = fmaf(w.x, values[0][v][i], sum);
            sum = fmaf(w.y, values[1][v][i], sum);
            sum = fmaf(w.z, values[2][v][i], sum);
            sums[h][v][i] = fmaf(w.w, values[3][v][i], sum);
          }
        }
      }
    }
    JoinTeams(sums);
  }

  // Sums over the teams of a warp by shuffles, over the warps in their order.
  __device__ void JoinTeams(float (&sums)[kGroup][kVectors][kElements]) {
#pragma unroll
    for (int h = 0; h < kGroup; ++h) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
#pragma unroll
          for (int mask = kLanes; mask < kWarpSize; mask *= 2)
            sums[h][v][i] += __shfl_xor_sync(kAllLanes, sums[h][v][i], mask);
        }
      }
    }
    const bool writes = thread_ % kWarpSize < kLanes;
    for (int warp = 0; warp < kDecodeWarps; ++warp) {
      __syncthreads();
      if (!writes || thread_ / kWarpSize != warp) continue;
#pragma unroll
      for (int h = 0; h < kGroup; ++h) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
          for (int i = 0; i < kElements; ++i) {
            const int d = load_.Dim(v) + i;
            if (d >= l_.dim_padded) continue;
            float& joined = s_.joined[h * l_.dim_padded + d];
            joined = warp == 0 ? sums[h][v][i] : joined + sums[h][v][i];
          }
        }
      }
    }
    __syncthreads();
  }

  // joined goes to the output, or to this split's part.
  __device__ void StoreValues(int g) {
    const int head_dim = pages_.layout.head_dim;
    for (int i = thread_; i < kGroup * head_dim; i += kDecodeThreads) {
      const int h = g + i / head_dim, d = i % head_dim;
      if (h >= l_.group) continue;
      const float sum = s_.joined[(h - g) * l_.dim_padded + d];
      if (u_.splits > 1) {
        l_.part_out[PartIndex(static_cast<int>(blockIdx.x), h) * head_dim + d] = sum;
      } else {
        *OutputOf(h, d) = sum / Sum(h);
      }
    }
    __syncthreads();  // joined is free again
  }
  __device__ float* OutputOf(int h, int d) const {
    return l_.args.out + ((static_cast<size_t>(u_.row) * l_.args.num_heads +
                           static_cast<size_t>(u_.head) * l_.group + h) *
                              pages_.layout.head_dim +
                          d);
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
    }
    if (!NeedsWeights()) return;
    for (int h = 0; h < l_.group; ++h) {
      for (int i = thread_; i < u_.count; i += kDecodeThreads)
        l_.part_weights[WeightIndex(h, u_.begin + i)] = s_.weights[h * l_.chunk + i];
    }
  }

  // Whether all other blocks of the head have ended, and their parts are to be seen.
  __device__ bool IsLastOfHead() {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (thread_ == 0)
      last = atomicAdd(&l_.splits_done[u_.unit], 1u) == static_cast<unsigned>(l_.max_splits) - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
  }

  // What other blocks wrote is read past this multiprocessor's own cache (__ldcg), which may hold
  // the line as it was when a neighbour's data was read from it.
  __device__ void JoinParts() {
    // factor[h, split] turns a split's sums and weights into shares of the whole. A warp per query
    // head.
    float* factor = s_.weights;
    const int lane = thread_ % kWarpSize;
    for (int h = thread_ / kWarpSize; h < l_.group; h += kDecodeWarps) {
      float highest = LowerBoundLogit();
      for (int split = lane; split < u_.splits; split += kWarpSize)
        highest = fmaxf(highest, __ldcg(&l_.part_max[PartIndex(split, h)]));
      highest = WarpMax(highest);
      float sum = 0.0f;
      for (int split = lane; split < u_.splits; split += kWarpSize) {
        const float scale = Exp2(__ldcg(&l_.part_max[PartIndex(split, h)]) - highest);
        factor[h * u_.splits + split] = scale;
        sum += __ldcg(&l_.part_sum[PartIndex(split, h)]) * scale;
      }
      sum = WarpSum(sum);
      for (int split = lane; split < u_.splits; split += kWarpSize)
        factor[h * u_.splits + split] /= sum;
    }
    __syncthreads();
    const int head_dim = pages_.layout.head_dim;
    for (int i = thread_; i < l_.group * head_dim; i += kDecodeThreads) {
      const int h = i / head_dim, d = i % head_dim;
      float sum = 0.0f;
      for (int split = 0; split < u_.splits; ++split)
        sum += __ldcg(&l_.part_out[PartIndex(split, h) * head_dim + d]) *
               factor[h * u_.splits + split];
      *OutputOf(h, d) = sum;
    }
    UpdateScores([&](int h, int entry) {
      return __ldcg(&l_.part_weights[WeightIndex(h, entry)]) *
             factor[h * u_.splits + entry / l_.chunk];
    });
  }

  __device__ void FinishWhole() {
    // The sums' reciprocals; `joined` is free by now.
    for (int h = thread_; h < l_.group; h += kDecodeThreads) s_.joined[h] = 1.0f / Sum(h);
    __syncthreads();
    UpdateScores([&](int h, int entry) { return s_.weights[h * l_.chunk + entry] * s_.joined[h]; });
  }

  // Scores of the whole head, and the next victim of a full one. weight(h, entry): the share of
  // query head h's attention.
  template <typename Weight>
  __device__ void UpdateScores(Weight weight) {
    __shared__ VictimCandidate candidates[kDecodeWarps];
    if (!rule_.scored) return;
    const int32_t* blocks = l_.args.tables.HeadBlocks(u_.slot, l_.args.layer, u_.head);
    const int block_size = pages_.layout.block_size;
    const int32_t next_position = l_.args.positions[u_.row] + 1;
    VictimCandidate mine = VictimCandidate::None();
    for (int entry = thread_; entry < u_.length; entry += kDecodeThreads) {
      const size_t slot =
          static_cast<size_t>(blocks[entry / block_size]) * block_size + entry % block_size;
      const int32_t position = __ldcg(&pages_.positions[slot]);
      float score = static_cast<float>(position);
      if (!rule_.by_position)
        score = rule_.decay * __ldcg(&pages_.scores[slot]) + rule_.gain * Reduce(entry, weight);
      pages_.scores[slot] = score;
      mine.OfferEntry(rule_, next_position, entry, position, score);
    }
    if (u_.length != l_.args.tables.caps[u_.head_index]) return;
    const VictimCandidate victim = BlockVictim<kDecodeThreads>(mine, candidates);
    if (thread_ == 0) l_.args.tables.victims[u_.head_index] = victim.entry;
  }

  template <typename Weight>
  __device__ float Reduce(int entry, Weight weight) const {
    float sum = 0.0f, squares = 0.0f, highest = 0.0f;
    for (int h = 0; h < l_.group; ++h) {
      const float w = weight(h, entry);
      sum += w;
      squares += w * w;
      highest = fmaxf(highest, w);
    }
    return rule_.reduce == GroupReduce::kMax            ? highest
           : rule_.reduce == GroupReduce::kSumOfSquares ? squares
                                                        : sum / static_cast<float>(l_.group);
  }

  const DecodeLaunch& l_;
  const DecodeUnit& u_;
  const KvPages& pages_;
  const DecodeRule rule_;
  const DecodeShared s_;
  const int thread_, team_;
  const EntryLoader<kDType, kLanes, kVectors, kAligned> load_;
};

template <DType kDType, int kLanes, int kVectors, int kGroup, bool kAligned>
__global__ void __launch_bounds__(kDecodeThreads)
    DecodeKernel(const __grid_constant__ DecodeLaunch launch) {
  if (launch.args.slots[blockIdx.z] < 0) return;  // padding
  const DecodeUnit unit(launch);
  DecodeBlock<kDType, kLanes, kVectors, kGroup, kAligned> block(launch, unit);
  if (unit.count > 0) block.Run();
  block.Finish();
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_ATTENTION_CUH_
