#include "kernels/cuda/finish_heads.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_row.cuh"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// Writes the state of one entry; `position` is its index in the prompt.
__device__ void WriteState(const WritePagesArgs& args, const DecodeRule& rule,
                           const PageIds* blocks, int head, int entry, int32_t position) {
  const KvPages& pages = args.pages;
  const size_t index = StateIndex(pages.layout, blocks, entry);
  if (pages.log_weights != nullptr && (rule.weighted || args.beside != nullptr)) {
    float* pair = PairOf(pages, blocks, entry);
    pair[0] = rule.weighted ? 0.0f : args.beside[head * args.beside_stride + position];
    pair[1] = 0.0f;
  }
  if (pages.scores == nullptr) return;
  if (rule.scored && rule.by_position) {
    pages.scores[index] = static_cast<float>(rule.rolling ? entry : position);
  } else if (args.scores != nullptr) {
    pages.scores[index] = args.scores[head * args.score_stride + position] * args.score_scale;
  } else if (rule.scored) {
    pages.scores[index] = 0.0f;
  }
}

// A warp writes one entry at a time; grid x: entries, y: heads.
__global__ void WriteEntriesKernel(WritePagesArgs args) {
  const int head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const KvPages& pages = args.pages;
  const DecodeRule rule = args.tables.rules[args.slot];
  const int first =
      static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, head);
  const int d = pages.layout.head_dim;
  for (int entry = first; entry < args.keep[head]; entry += static_cast<int>(gridDim.x) * kWarps) {
    const int32_t position =
        args.kept == nullptr ? entry : args.kept[head * args.kept_stride + entry];
    if (lane == 0) WriteState(args, rule, blocks, head, entry, position);
    if (entry < args.num_written) continue;
    const size_t index = PageIndex(pages.layout, blocks, entry);
    const size_t from = head * args.kv_head_stride + static_cast<size_t>(position) * d;
    for (int i = lane; i < d; i += kWarpSize) {
      const auto element = [&](int j) { return LoadElement(args.k, from + j); };
      const float key = rule.rolling ? RotatedBack(args.rotary, position, i, element) : element(i);
      StoreRowElement(pages.layout.dtype, pages.keys, index * d + i, key);
      StoreRowElement(pages.layout.dtype, pages.values, index * d + i,
                      LoadElement(args.v, from + i));
    }
    if (lane == 0) pages.positions[index] = rule.rolling ? entry : position;
  }
}

}  // namespace

cudaError_t WritePages(const Context& context, const WritePagesArgs& args) {
  // The number of kept entries is unknown on the host; n is the upper bound.
  constexpr int kMaxBlocks = 1024;
  const int blocks = CeilDiv(args.n, kWarps);
  const dim3 grid(blocks < 1            ? 1
                  : blocks < kMaxBlocks ? blocks
                                        : kMaxBlocks,
                  args.tables.num_kv_heads);
  const cudaError_t error =
      Launch(WriteEntriesKernel, grid, dim3(kThreads), 0, context.stream, args);
  if (error != cudaSuccess) return error;
  return FinishHeads(context, {.keep = args.keep,
                               .growth = args.growth,
                               .next_position = args.n,
                               .slot = args.slot,
                               .layer = args.layer,
                               .pages = args.pages,
                               .tables = args.tables});
}

}  // namespace hydrant::cuda
