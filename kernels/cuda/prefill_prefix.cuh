// A paged prefix before the keys of a run. It is gathered into scratch, right-aligned to a whole
// number of key tiles, so that no tile mixes prefix and run and every kernel counts keys from 0.
// Tiles before a head's first entry are never read, so neither the bound nor the longest head
// affects the bits of a result.
#ifndef HYDRANT_KERNELS_CUDA_PREFILL_PREFIX_CUH_
#define HYDRANT_KERNELS_CUDA_PREFILL_PREFIX_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_row.cuh"
#include "kernels/ops/prefill_attention.h"
#include "kernels/victim.h"

namespace hydrant::cuda {

inline constexpr int kPrefixTile = 64;  // a multiple of every kernel's key tile

// Position of the prefix among the keys; key `places` is the run's first key.
struct PrefixPlaces {
  int places = 0;                    // a multiple of kPrefixTile
  const int32_t* lengths = nullptr;  // [num_kv_heads]; null: no prefix

  // First key of a head.
  __device__ int First(int kv_head) const {
    return lengths == nullptr ? places : places - lengths[kv_head];
  }
  // Where a key's statistic is accumulated; null: not requested.
  __device__ float* Of(const ColumnStatistic& statistic, int kv_head, int key) const {
    if (key >= places) {
      return statistic.out == nullptr ? nullptr
                                      : statistic.out + kv_head * statistic.stride + (key - places);
    }
    return statistic.prefix_out == nullptr
               ? nullptr
               : statistic.prefix_out + kv_head * statistic.prefix_stride + (key - First(kv_head));
  }
};

inline PrefixPlaces PlacesOf(const PrefillAttentionArgs& args) {
  PrefixPlaces places;
  if (args.prefix == nullptr) return places;
  const PagedPrefix& prefix = *args.prefix;
  places.places = CeilDiv(prefix.max_entries, kPrefixTile) * kPrefixTile;
  places.lengths = prefix.tables.lengths + prefix.tables.HeadIndex(prefix.slot, prefix.layer, 0);
  return places;
}

// The arguments with positions counted from the prefix's first place.
inline PrefillAttentionArgs BehindPrefix(const PrefillAttentionArgs& args, int places) {
  PrefillAttentionArgs shifted = args;
  const int end = args.first_position + args.num_queries;
  const auto shift = [&](int32_t position) { return std::clamp(position, 0, end) + places; };
  shifted.first_position += places;
  shifted.end_key = std::min(args.end_key, end) + places;
  for (ColumnStatistic& statistic : shifted.statistics) {
    statistic.first_query = shift(statistic.first_query);
    statistic.end_query = shift(statistic.end_query);
  }
  return shifted;
}

struct GatherPrefixArgs {
  PagedPrefix prefix;
  PrefixPlaces places;
  bool by_position = false;   // order entries by position, as windows require
  DType dtype = DType::kF32;  // of k and v
  void* k = nullptr;          // place p of head h: row h * head_rows + p, of head_dim
  void* v = nullptr;
  int64_t head_rows = 0;
};

inline constexpr int kGatherThreads = 256;
inline constexpr int kGatherWarps = kGatherThreads / kWarpSize;

// One warp per place, or per entry with by_position; grid x: places, y: heads. Places before a
// head's entries in their first tile are zeroed: they are multiplied by zero weights.
static __global__ void GatherPrefixKernel(GatherPrefixArgs args) {
  const PagedPrefix& prefix = args.prefix;
  const KvLayout& layout = prefix.pages.layout;
  const int head = static_cast<int>(blockIdx.y), d = layout.head_dim;
  const int place = static_cast<int>(blockIdx.x * kGatherWarps + threadIdx.x / kWarpSize);
  const int first = args.places.First(head);
  if (place >= args.places.places || place < first / kPrefixTile * kPrefixTile) return;
  const PageIds* blocks = prefix.tables.HeadBlocks(prefix.slot, prefix.layer, head);
  const bool exists = place >= first;
  const size_t entry = exists ? PageIndex(layout, blocks, place - first) : 0;
  const size_t from = entry * d;
  const int row = exists && args.by_position
                      ? args.places.places - (prefix.next_position - prefix.pages.positions[entry])
                      : place;
  const size_t to = (head * args.head_rows + row) * d;
  for (int i = static_cast<int>(threadIdx.x) % kWarpSize; i < d; i += kWarpSize) {
    const float k = exists ? LoadRowElement(layout.dtype, prefix.pages.keys, from + i) : 0.0f;
    const float v = exists ? LoadRowElement(layout.dtype, prefix.pages.values, from + i) : 0.0f;
    StoreElement(args.dtype, args.k, to + i, k);
    StoreElement(args.dtype, args.v, to + i, v);
  }
}

inline cudaError_t GatherPrefix(cudaStream_t stream, const GatherPrefixArgs& args,
                                int num_kv_heads) {
  if (args.places.places == 0) return cudaSuccess;
  return Launch(GatherPrefixKernel, dim3(CeilDiv(args.places.places, kGatherWarps), num_kv_heads),
                dim3(kGatherThreads), 0, stream, args);
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_PREFILL_PREFIX_CUH_
