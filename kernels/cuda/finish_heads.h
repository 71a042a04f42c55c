// What ends every operation that sets which entries a head holds: its length, and its first victim.
#ifndef HYDRANT_KERNELS_CUDA_FINISH_HEADS_H_
#define HYDRANT_KERNELS_CUDA_FINISH_HEADS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops.h"
#include "kernels/kv_pages.h"

namespace hydrant::cuda {

struct FinishHeadsArgs {
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int32_t growth = -1;            // >= 0: caps become keep + growth first
  int next_position = 0;
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

// lengths[slot, layer, h] = keep[h]; where the rule is scored and keep[h] == cap, the victim of
// entries 0 .. keep[h] - 1 for next_position, of a rolling rule for rank keep[h].
cudaError_t FinishHeads(const Context& context, const FinishHeadsArgs& args);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_FINISH_HEADS_H_
