#include <algorithm>
#include <bit>

#include "kernels/cuda/decode_scratch.cuh"
#include "kernels/cuda/decode_stream.cuh"
#include "kernels/cuda/decode_stream.h"

namespace hydrant::cuda {
namespace {

// Heads up to this length are scored by the last block to finish; longer ones by a separate kernel.
constexpr int kScoredByOne = 1024;
constexpr size_t kReservedShared = 1024;  // per block, by the system

__global__ void __launch_bounds__(kDecodeThreads)
    ScoresKernel(const __grid_constant__ DecodeLaunch launch) {
  WaitForPredecessor();
  if (launch.args.slots[blockIdx.z] < 0) return;  // padding
  SplitScores(launch).Run();
}

int PagesOfChunk(int block_size) { return CeilDiv(kStreamChunk + block_size - 2, block_size) + 1; }

// Sets the fields that depend only on the page layout.
DecodeLaunch LaunchOf(const KvLayout& layout, int group) {
  DecodeLaunch launch;
  launch.args.pages.layout = layout;
  launch.group = group;
  launch.chunk = kStreamChunk;
  const auto block_size = static_cast<unsigned>(layout.block_size);
  launch.page_shift = std::has_single_bit(block_size) ? std::countr_zero(block_size) : -1;
  launch.chunk_pages = PagesOfChunk(layout.block_size);
  return launch;
}
DecodeLaunch LaunchOf(const DecodeAttentionArgs& args) {
  DecodeLaunch launch = LaunchOf(args.pages.layout, args.num_heads / args.tables.num_kv_heads);
  launch.args = args;
  launch.weighted = args.weighted && args.pages.log_weights != nullptr;
  launch.max_splits = std::max(1, CeilDiv(args.max_scored_entries, kStreamChunk));
  launch.scores_follow = args.max_scored_entries > kScoredByOne;
  return launch;
}

template <typename Products>
size_t SharedBytes(DecodeLaunch* launch) {
  Products::Plan(launch);
  return StreamShared::BytesBeforeRing(*launch) + Products::kRingBytes;
}

template <typename Products>
cudaError_t Run(const Context& context, DecodeLaunch launch) {
  // Log weights do not change the number of blocks: zero log weights must give the same bits as
  // none, so the work must be split equally.
  DecodeLaunch plain = launch;
  plain.weighted = false;
  const size_t plain_bytes = SharedBytes<Products>(&plain), bytes = SharedBytes<Products>(&launch);
  const int of_sm =
      std::clamp(static_cast<int>(context.shared_of_sm / (plain_bytes + kReservedShared)), 1,
                 Products::kBlocksPerSm);
  const int blocks = context.num_sms * of_sm;
  // A block has parts of at most two heads; one counter per head, and one for the launch.
  const size_t units = static_cast<size_t>(launch.args.num_rows) * launch.args.tables.num_kv_heads;
  cudaError_t error = GetDecodeScratch(context, size_t{2} * blocks, units + 1, &launch);
  if (error == cudaSuccess)
    error = LaunchOverlapped(StreamKernel<Products>, dim3(blocks), dim3(kDecodeThreads), bytes,
                             context.stream, launch);
  if (error != cudaSuccess || !launch.scores_follow) return error;
  return LaunchScores(context, launch);
}

// Calls run.template operator()<Products>() with the Products for the arguments.
template <DType kDType, typename Run>
auto WithDims(int head_dim, Run run) {
  if (head_dim <= 64) return run.template operator()<RingProducts<PageTile<kDType, 64>>>();
  if (head_dim <= 128) return run.template operator()<RingProducts<PageTile<kDType, 128>>>();
  return run.template operator()<RingProducts<PageTile<kDType, 256>>>();
}
template <typename Run>
auto WithProducts(const KvLayout& layout, Run run) {
  switch (layout.dtype) {
    case DType::kBF16:
      return WithDims<DType::kBF16>(layout.head_dim, run);
    case DType::kF16:
      return WithDims<DType::kF16>(layout.head_dim, run);
    case DType::kE4M3:
      return WithDims<DType::kE4M3>(layout.head_dim, run);
    case DType::kQ8_0:
      return WithDims<DType::kQ8_0>(layout.head_dim, run);
    default:
      return WithDims<DType::kQ4_0>(layout.head_dim, run);
  }
}

bool HasTiles(const KvLayout& layout) {
  switch (layout.dtype) {
    case DType::kBF16:
    case DType::kF16:
      return layout.head_dim % 8 == 0 && layout.head_dim <= 256;
    case DType::kE4M3:
      return layout.head_dim <= 256;
    case DType::kQ8_0:
    case DType::kQ4_0:
      return layout.block_size % 16 == 0 && layout.head_dim <= 256;  // a tile lies in one page
    default:
      return false;
  }
}

}  // namespace

bool StreamsDecode(const Context& context, const KvLayout& layout, int group) {
  if (!context.streams_decode || context.batch_invariant || !HasTiles(layout)) return false;
  // Each thread reads one page id of a piece.
  if (PagesOfChunk(layout.block_size) > kDecodeThreads) return false;
  DecodeLaunch launch = LaunchOf(layout, group);
  launch.weighted = true;  // the largest layout
  const size_t bytes =
      WithProducts(layout, [&]<typename Products>() { return SharedBytes<Products>(&launch); });
  return bytes <= context.shared_of_block;
}

cudaError_t StreamDecode(const Context& context, const DecodeAttentionArgs& args) {
  return WithProducts(args.pages.layout,
                      [&]<typename Products>() { return Run<Products>(context, LaunchOf(args)); });
}

cudaError_t LaunchScores(const Context& context, const DecodeLaunch& launch) {
  const dim3 grid(launch.max_splits, launch.args.tables.num_kv_heads, launch.args.num_rows);
  return LaunchOverlapped(ScoresKernel, grid, dim3(kDecodeThreads), 0, context.stream, launch);
}

}  // namespace hydrant::cuda
