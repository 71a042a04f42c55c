// Scratch memory of the decode kernels.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_SCRATCH_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_SCRATCH_CUH_

#include "kernels/cuda/decode_launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/victim.cuh"

namespace hydrant::cuda {

// Sets the scratch pointers of `launch` for `parts` parts of split heads and `counters` counters.
// REQUIRES: its args, group, weighted, max_splits and scores_follow are set.
inline cudaError_t GetDecodeScratch(const Context& context, size_t parts, size_t counters,
                                    DecodeLaunch* launch) {
  const DecodeAttentionArgs& args = launch->args;
  const size_t units = static_cast<size_t>(args.num_rows) * args.tables.num_kv_heads;
  const size_t rows = parts * launch->group, heads = units * launch->group;
  ScratchLayout layout;
  const size_t out = layout.Add<float>(rows * args.pages.layout.head_dim);
  const size_t maxima = layout.Add<float>(rows);
  const size_t sums = layout.Add<float>(rows);
  const size_t numerator_maxima = layout.Add<float>(launch->weighted ? rows : 0);
  const size_t logits = layout.Add<float>(heads * args.max_scored_entries);
  const size_t head_max = layout.Add<float>(heads);
  const size_t head_sum = layout.Add<float>(heads);
  const size_t ranks = layout.Add<int32_t>(launch->scores_follow ? units : 0);
  const size_t victims =
      layout.Add<VictimCandidate>(launch->scores_follow ? units * launch->max_splits : 0);
  void* scratch = nullptr;
  const cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error != cudaSuccess) return error;
  launch->part_out = At<float>(scratch, out);
  launch->part_max = At<float>(scratch, maxima);
  launch->part_sum = At<float>(scratch, sums);
  launch->part_numerator_max = At<float>(scratch, numerator_maxima);
  launch->kept_logits = At<float>(scratch, logits);
  launch->head_max = At<float>(scratch, head_max);
  launch->head_sum = At<float>(scratch, head_sum);
  launch->rank_above = At<int32_t>(scratch, ranks);
  launch->part_victims = At<VictimCandidate>(scratch, victims);
  return context.counters->Get(counters, context.stream, &launch->splits_done);
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_SCRATCH_CUH_
