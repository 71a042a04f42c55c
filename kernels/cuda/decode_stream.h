// Decode attention by persistent blocks with equal shares of work (decode_stream.cuh).
#ifndef HYDRANT_KERNELS_CUDA_DECODE_STREAM_H_
#define HYDRANT_KERNELS_CUDA_DECODE_STREAM_H_

#include "kernels/cuda/ops.h"

namespace hydrant::cuda {

struct DecodeLaunch;

// Whether StreamDecode() supports pages of this layout with `group` query heads per KV head: 16-bit
// pages with a head_dim divisible by 8, fp8 pages, both of at least three entries; int8 and int4
// pages of a multiple of 16 entries; head_dim up to 256; not with batch-invariant results.
bool StreamsDecode(const Context& context, const KvLayout& layout, int group);

// REQUIRES: StreamsDecode(). Ignores args.max_entries and args.mean_entries.
cudaError_t StreamDecode(const Context& context, const DecodeAttentionArgs& args);

// Launches the scoring kernel (decode_scores.cuh): one block for each of max_splits chunks.
cudaError_t LaunchScores(const Context& context, const DecodeLaunch& launch);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_STREAM_H_
