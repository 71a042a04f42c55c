// Shared by the decode kernels: launch parameters, a block's work and its shared memory.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_LAUNCH_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_LAUNCH_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/decode_attention.h"

namespace hydrant::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;  // exp(x) = 2^(x log2 e)
inline constexpr int kDecodeThreads = 128;
inline constexpr int kDecodeWarps = kDecodeThreads / kWarpSize;

// Parameters of one launch. Scratch arrays are indexed by `unit` = row * kv_heads + head.
struct DecodeLaunch {
  DecodeAttentionArgs args;
  int group = 0;          // query heads of a KV head
  int chunk = 0;          // entries per block, a multiple of 64
  int max_splits = 0;     // the grid's x
  bool weighted = false;  // entries of some rows may have log weights
  // Shared-memory layout of the products (set by their Plan()).
  int query_floats = 0;
  int weight_rows = 0;  // group, or more
  int joined_rows = 0;  // query heads with values summed at once
  int dim_padded = 0;   // floats per row of joined

  // Parts of split heads, joined by the last block to finish (decode_join.cuh). `part` is an index
  // over the parts of all heads.
  float* part_out = nullptr;            // [part, group, head_dim]
  float* part_max = nullptr;            // [part, group]
  float* part_sum = nullptr;            // [part, group]
  float* part_numerator_max = nullptr;  // [part, group], where weighted
  // For heads scored after their whole attention is computed: base-2 logits, and the factors that
  // convert them to attention shares. head_sum[unit, 0] is 0 where no scoring is pending.
  float* kept_logits = nullptr;  // [unit, group, max_scored_entries]
  float* head_max = nullptr;     // [unit, group]
  float* head_sum = nullptr;     // [unit, group]
  // For heads scored by a separate kernel (decode_scores.cuh): the rank above which ranks shift,
  // and each split's victim.
  bool scores_follow = false;
  int32_t* rank_above = nullptr;    // [unit], of rolling heads
  void* part_victims = nullptr;     // VictimCandidate [unit, max_splits]
  unsigned* splits_done = nullptr;  // [unit], zero before the launch and after it

  // For evenly shared work (decode_stream.cuh): log2 of the page size, or -1 if it is not a power
  // of two; and the most pages that a chunk spans.
  int page_shift = -1;
  int chunk_pages = 0;

  __device__ int PageOf(int entry) const {
    return page_shift >= 0 ? entry >> page_shift : entry / args.pages.layout.block_size;
  }
  __device__ size_t LogitIndex(int unit, int h, int entry) const {
    return (static_cast<size_t>(unit) * group + h) * args.max_scored_entries + entry;
  }
  // Four floats more than a chunk, so that neighbouring rows begin in different banks.
  __host__ __device__ int weight_stride() const { return chunk + 4; }
};

// Layout of dynamic shared memory, in this order; each array begins at a multiple of 16 bytes.
struct DecodeShared {
  float* weights;   // [weight_rows, weight_stride]: logits, then weights
  float* shares;    // the same for the denominator, if it differs; else weights
  float* queries;   // [query_floats], scaled so that logits are base 2
  float* joined;    // [kDecodeWarps, joined_rows, dim_padded]
  float* by_warp;   // [3, weight_rows, kDecodeWarps]
  uint32_t* index;  // [chunk]: page slot of each entry

  __host__ __device__ static size_t Floats(const DecodeLaunch& launch) {
    return (launch.weighted ? 2 : 1) * WeightFloats(launch) + launch.query_floats +
           JoinedFloats(launch) + ByWarpFloats(launch) + launch.chunk;
  }
  // `weighted`: whether this block's row has log weights.
  __device__ DecodeShared(float* memory, const DecodeLaunch& launch, bool weighted) {
    weights = memory;
    SetWeighted(launch, weighted);
    queries = weights + (launch.weighted ? 2 : 1) * WeightFloats(launch);
    joined = queries + launch.query_floats;
    by_warp = joined + JoinedFloats(launch);
    index = reinterpret_cast<uint32_t*>(by_warp + ByWarpFloats(launch));
  }
  __device__ void SetWeighted(const DecodeLaunch& launch, bool weighted) {
    shares = weighted ? weights + WeightFloats(launch) : weights;
  }

 private:
  __host__ __device__ static size_t WeightFloats(const DecodeLaunch& launch) {
    return static_cast<size_t>(launch.weight_rows) * launch.weight_stride();
  }
  __host__ __device__ static size_t JoinedFloats(const DecodeLaunch& launch) {
    return static_cast<size_t>(kDecodeWarps) * launch.joined_rows * launch.dim_padded;
  }
  __host__ __device__ static size_t ByWarpFloats(const DecodeLaunch& launch) {
    return size_t{3} * launch.weight_rows * kDecodeWarps;
  }
};

// The work of one block.
struct DecodeUnit {
  int row, head, unit;
  int slot;
  size_t head_index;
  int32_t length;     // with the new entry
  int32_t new_entry;  // index of the new token
  bool grows;
  bool weighted;             // entries have log weights
  int splits, begin, count;  // this block's entries: [begin, begin + count)

  DecodeUnit() = default;
  // A chunk of a head, from the block's grid index.
  __device__ explicit DecodeUnit(const DecodeLaunch& launch) {
    const SequenceTables& tables = launch.args.tables;
    row = static_cast<int>(blockIdx.z);
    head = static_cast<int>(blockIdx.y);
    unit = row * tables.num_kv_heads + head;
    slot = launch.args.slots[row];
    head_index = tables.HeadIndex(slot, launch.args.layer, head);
    weighted = launch.weighted && tables.rules[slot].weighted;
    const int32_t held = tables.lengths[head_index];
    grows = held < tables.caps[head_index];
    length = grows ? held + 1 : held;
    new_entry = grows ? held : tables.victims[head_index];
    splits = (length + launch.chunk - 1) / launch.chunk;
    begin = static_cast<int>(blockIdx.x) * launch.chunk;
    count = min(launch.chunk, length - begin);
  }
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_LAUNCH_CUH_
