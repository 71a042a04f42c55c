// Decode attention by blocks that share the work evenly (decode_stream.cuh).
#ifndef HYDRANT_KERNELS_CUDA_DECODE_STREAM_H_
#define HYDRANT_KERNELS_CUDA_DECODE_STREAM_H_

#include "kernels/cuda/ops.h"

namespace hydrant::cuda {

struct DecodeLaunch;

// Whether StreamDecode() serves pages of this layout, with so many query heads to a KV head: 16-bit
// pages with head dimensions that are multiples of 8, fp8 pages, both of three entries or more;
// int8 and int4 pages of a multiple of 16 entries; head dimensions to 256; results that may depend
// on the batch.
bool StreamsDecode(const Context& context, const KvLayout& layout, int group);

// REQUIRES: StreamsDecode(). Does not look at args.max_entries and args.mean_entries.
cudaError_t StreamDecode(const Context& context, const DecodeAttentionArgs& args);

// The kernel of scores that follow (decode_scores.cuh): a block for each of max_splits chunks.
cudaError_t LaunchScores(const Context& context, const DecodeLaunch& launch);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_STREAM_H_
