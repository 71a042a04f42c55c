#include <algorithm>
#include <cmath>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/decode_products_fma.cuh"
#include "kernels/cuda/decode_products_mma.cuh"
#include "kernels/cuda/decode_scratch.cuh"
#include "kernels/cuda/decode_stream.h"
#include "kernels/cuda/ops.h"

namespace hydrant::cuda {
namespace {

// Shared-memory floats for the weights of a head that is not split: 32 KiB leave room for several
// blocks per multiprocessor.
constexpr int kWeightFloats = 8192;
constexpr int kInvariantChunk = 512;
constexpr int kLeastChunk = 128;
constexpr int kBlocksPerSm = 4;
// Every head gets as many blocks as the longest may need, and blocks without work still cost time:
// the mean head counts as at least 1 / kLongestToMean of the longest.
constexpr int kLongestToMean = 8;

// From this many query heads per KV head, multiply-adds are slower than the memory.
constexpr int kLeastMmaGroup = 4;

int RoundUp(int value, int unit) { return (value + unit - 1) / unit * unit; }

// Entries per head, for estimating work.
int HeadEntries(const DecodeAttentionArgs& args) {
  const int longest = std::max(args.max_entries, 1);
  if (args.mean_entries <= 0) return longest;
  return std::clamp(args.mean_entries, CeilDiv(longest, kLongestToMean), longest);
}

// Entries per block. With batch-invariant results it depends on the shape alone; otherwise heads
// are split until all multiprocessors have work.
int ChunkOf(const Context& context, const DecodeAttentionArgs& args, int weight_rows) {
  const int most = std::max(256, kWeightFloats / weight_rows / 64 * 64);
  // The join stores one factor per split in the space of the weights.
  const int splits_fit = RoundUp(static_cast<int>(std::ceil(std::sqrt(args.max_entries))), 64);
  if (context.batch_invariant) return std::max(std::min(most, kInvariantChunk), splits_fit);
  const int64_t entries = int64_t{args.num_rows} * args.tables.num_kv_heads * HeadEntries(args);
  const int share = RoundUp(CeilDiv(entries, int64_t{context.num_sms} * kBlocksPerSm), 64);
  return std::max(std::min(most, std::max(share, kLeastChunk)), splits_fit);
}

template <typename Products>
cudaError_t Run(const Context& context, const DecodeAttentionArgs& args) {
  DecodeLaunch launch;
  launch.args = args;
  launch.group = args.num_heads / args.tables.num_kv_heads;
  launch.weighted = args.weighted && args.pages.log_weights != nullptr;
  Products::Plan(&launch);
  launch.chunk = ChunkOf(context, args, launch.weight_rows);
  launch.max_splits = std::max(1, CeilDiv(args.max_entries, launch.chunk));
  if (launch.max_splits > 1) {
    launch.scores_follow = args.max_scored_entries > 0;
    const size_t units = static_cast<size_t>(args.num_rows) * args.tables.num_kv_heads;
    const cudaError_t error = GetDecodeScratch(context, units * launch.max_splits, units, &launch);
    if (error != cudaSuccess) return error;
  }
  const dim3 grid(launch.max_splits, args.tables.num_kv_heads, args.num_rows);
  const cudaError_t error =
      LaunchOverlapped(DecodeKernel<Products>, grid, dim3(kDecodeThreads),
                       DecodeShared::Floats(launch) * sizeof(float), context.stream, launch);
  if (error != cudaSuccess || !launch.scores_follow) return error;
  return LaunchScores(context, launch);
}

template <DType kDType, int kLanes, int kVectors, int kGroup, bool kAligned = true>
cudaError_t RunFma(const Context& context, const DecodeAttentionArgs& args) {
  return Run<FmaProducts<kDType, kLanes, kVectors, kGroup, kAligned>>(context, args);
}

template <DType kDType, int kLanes>
cudaError_t RunGroups(const Context& context, const DecodeAttentionArgs& args) {
  if constexpr (kDType != DType::kF32) {
    if (args.num_heads == args.tables.num_kv_heads)
      return RunFma<kDType, kLanes, 1, 1>(context, args);
  }
  return RunFma<kDType, kLanes, 1, 4>(context, args);
}

template <DType kDType>
cudaError_t RunMma(const Context& context, const DecodeAttentionArgs& args) {
  const int head_dim = args.pages.layout.head_dim;
  if (head_dim <= 64) return Run<MmaProducts<kDType, 64>>(context, args);
  if (head_dim <= 128) return Run<MmaProducts<kDType, 128>>(context, args);
  return Run<MmaProducts<kDType, 256>>(context, args);
}

// Tensor cores for every group size: the conversions are shared by all heads of the group.
cudaError_t RunE4M3(const Context& context, const DecodeAttentionArgs& args) {
  const int head_dim = args.pages.layout.head_dim;
  if (head_dim <= 256) return RunMma<DType::kE4M3>(context, args);
  return head_dim <= 512 ? RunFma<DType::kE4M3, 32, 2, 4>(context, args) : cudaErrorInvalidValue;
}

template <DType kDType>
cudaError_t RunDims(const Context& context, const DecodeAttentionArgs& args) {
  constexpr int kElements = PageVector<kDType>::kElements;
  const int head_dim = args.pages.layout.head_dim;
  const int vectors = CeilDiv(head_dim, kElements);
  if constexpr (BlockElements(kDType) == 1) {
    if (head_dim % kElements != 0) return RunFma<kDType, 32, 2, 4, false>(context, args);
  }
  if constexpr (kDType == DType::kF16 || kDType == DType::kBF16) {
    const int group = args.num_heads / args.tables.num_kv_heads;
    if (group >= kLeastMmaGroup && head_dim <= 256) return RunMma<kDType>(context, args);
  }
  if constexpr (BlockElements(kDType) == 1) {  // heads of 32 dims in blocks: half a team is idle
    if (vectors <= 4) return RunGroups<kDType, 4>(context, args);
  }
  if (vectors <= 8) return RunGroups<kDType, 8>(context, args);
  if (vectors <= 16) return RunGroups<kDType, 16>(context, args);
  if (vectors <= 32) return RunGroups<kDType, 32>(context, args);
  return vectors <= 64 ? RunFma<kDType, 32, 2, 4>(context, args) : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t DecodeAttention(const Context& context, const DecodeAttentionArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  const int group = args.num_heads / args.tables.num_kv_heads;
  if (StreamsDecode(context, args.pages.layout, group)) return StreamDecode(context, args);
  switch (args.pages.layout.dtype) {
    case DType::kF32:
      return RunDims<DType::kF32>(context, args);
    case DType::kF16:
      return RunDims<DType::kF16>(context, args);
    case DType::kBF16:
      return RunDims<DType::kBF16>(context, args);
    case DType::kE4M3:
      return RunE4M3(context, args);
    case DType::kQ8_0:
      return RunDims<DType::kQ8_0>(context, args);
    case DType::kQ4_0:
      return RunDims<DType::kQ4_0>(context, args);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace hydrant::cuda
