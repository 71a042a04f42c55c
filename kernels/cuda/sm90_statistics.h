// Column statistics with wgmma on compute capability 9.0, replacing MmaColumnStatistics
// (prefill_attention_mma.cuh), and the log-sum-exps of queries without output, the first part of an
// echo. On trial (HYDRANT_CUDA_TRIAL=sums): not yet run on a GPU.
#ifndef HYDRANT_KERNELS_CUDA_SM90_STATISTICS_H_
#define HYDRANT_KERNELS_CUDA_SM90_STATISTICS_H_

#include "kernels/cuda/ops.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

struct MmaArgs;
struct MmaBatch;
struct PassStatistics;
struct TileParts;

inline constexpr int kSm90StatisticKeys = 128;  // per block

// Whether they support a run: head_dim up to 128, no softcap, results that may depend on the batch.
// The run's length does not matter, so slices of a prompt give the same bits.
bool Sm90Counts(const Context& context, const PrefillAttentionArgs& args);

// REQUIRES: Sm90Counts(). With TileParts `splits` blocks share a block's keys.
cudaError_t Sm90Statistics(const Context& context, bool bf16, const MmaArgs& m,
                           const PassStatistics& statistics, const TileParts& parts, int splits);
// For runs with `count` statistics each, in tiles of kSm90StatisticKeys keys.
cudaError_t Sm90BatchStatistics(const Context& context, bool bf16, const MmaBatch& batch,
                                int count);

// Writes m.log_sum_exp. REQUIRES: Sm90Counts(), no window.
cudaError_t Sm90LogSumExps(const Context& context, bool bf16, const MmaArgs& m);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SM90_STATISTICS_H_
