// Last step of every operation that sets a head's entries: updates its length and its first victim.
#ifndef HYDRANT_KERNELS_CUDA_FINISH_HEADS_H_
#define HYDRANT_KERNELS_CUDA_FINISH_HEADS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops.h"
#include "kernels/kv_pages.h"

namespace hydrant::cuda {

struct FinishHeadsArgs {
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int32_t growth = -1;            // >= 0: first sets caps to keep + growth
  int next_position = 0;
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

// lengths[slot, layer, h] = keep[h]. If the rule is scored and keep[h] == cap, picks the victim
// among entries 0 .. keep[h] - 1 for next_position, or for rank keep[h] under a rolling rule.
cudaError_t FinishHeads(const Context& context, const FinishHeadsArgs& args);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_FINISH_HEADS_H_
