// Stores a head's new entry and its output in a decode step.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_ENTRY_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_ENTRY_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/decode_scores.cuh"
#include "kernels/cuda/page_row.cuh"

namespace hydrant::cuda {

// Writes the new token's key, value, position and state to the head's pages. All
// threads of the block.
template <DType kDType>
__device__ inline void StoreNewEntry(const DecodeLaunch& launch, const DecodeUnit& unit,
                                     const DecodeRule& rule) {
  const DecodeAttentionArgs& args = launch.args;
  const int head_dim = args.pages.layout.head_dim;
  const uint32_t slot = DataSlot(launch, unit, unit.new_entry);
  const size_t from = static_cast<size_t>(unit.unit) * head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += kDecodeThreads) {
    const size_t to = static_cast<size_t>(slot) * head_dim + d;
    StoreRowElement(kDType, args.pages.keys, to, args.k[from + d]);
    StoreRowElement(kDType, args.pages.values, to, args.v[from + d]);
  }
  if (threadIdx.x != 0) return;
  // Ranks change after all blocks have read them.
  if (!rule.rolling) args.pages.positions[slot] = args.positions[unit.row];
  if (rule.ScoresEntries()) *ScoreAt(launch, unit, unit.new_entry) = 0.0f;
  if (!unit.weighted) return;
  float* log_weights = LogWeightsAt(launch, unit, unit.new_entry);
  log_weights[0] = log_weights[1] = 0.0f;
}

__device__ inline void StoreHeadOutput(const DecodeLaunch& launch, const DecodeUnit& unit, int h,
                                       int d, float value) {
  const DecodeAttentionArgs& args = launch.args;
  const size_t query_head = static_cast<size_t>(unit.row) * args.num_heads +
                            static_cast<size_t>(unit.head) * launch.group + h;
  StoreElement(args.out_dtype, args.out, query_head * args.pages.layout.head_dim + d, value);
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_ENTRY_CUH_
