// Three launches. A block per head decides which entries are evicted, and lists their slots (holes)
// and the kept entries beyond the new length. Warps move these entries into the holes.
// FinishHeads() updates lengths and victims as after a prompt. Holes and moved entries are equal in
// number, and no slot is both read and written, so the order is free.
#include <algorithm>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/finish_heads.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/list_entries.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/radix.cuh"
#include "kernels/ops/compact.h"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMoveThreads = 256;
constexpr int kMoveWarps = kMoveThreads / kWarpSize;

// In scratch. Move i of head h copies entry from[h, i] to to[h, i].
struct Moves {
  int32_t* from;  // [num_kv_heads, stride]
  int32_t* to;    // [num_kv_heads, stride]
  int* counts;    // [num_kv_heads]
  int64_t stride;
  size_t row_bytes;  // of a key
};

// The entries of one head and which of them are kept.
struct Head {
  const CompactArgs& args;
  const PageIds* blocks;
  bool by_position;
  uint64_t cut = 0;  // the lowest rank that is kept

  __device__ size_t Index(int entry) const { return PageIndex(args.pages.layout, blocks, entry); }
  __device__ int32_t Position(int entry) const { return args.pages.positions[Index(entry)]; }
  __device__ float Score(int entry) const {
    return args.pages.scores[StateIndex(args.pages.layout, blocks, entry)];
  }
  __device__ bool IsProtected(int entry) const { return args.IsProtected(Position(entry)); }
  __device__ uint64_t Rank(int entry) const {
    const int32_t position = Position(entry);
    return RankKey(by_position ? static_cast<float>(position) : Score(entry), position);
  }
  __device__ bool Stays(int entry) const { return IsProtected(entry) || Rank(entry) >= cut; }
};

__global__ void PlanMovesKernel(CompactArgs args, Moves moves) {
  __shared__ RadixSearch<int> search;
  __shared__ int sums[kWarps + 1];
  const int h = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const SequenceTables& tables = args.tables;
  const int length = tables.lengths[tables.HeadIndex(args.slot, args.layer, h)];
  const int keep = args.keep[h];
  if (keep >= length) {
    if (thread == 0) moves.counts[h] = 0;
    return;
  }
  Head head{args, tables.HeadBlocks(args.slot, args.layer, h), tables.rules[args.slot].by_position};
  int my_protected = 0, all_protected = 0;
  for (int entry = thread; entry < length; entry += kThreads)
    my_protected += head.IsProtected(entry) ? 1 : 0;
  BlockExclusiveSum<kWarps>(my_protected, sums, &all_protected);
  head.cut = FindRank(search, keep - all_protected, [&](auto visit) {
    for (int entry = thread; entry < length; entry += kThreads)
      if (!head.IsProtected(entry)) visit(head.Rank(entry));
  });
  ListEntries<kWarps>(
      0, 0, keep, [&](int entry) { return !head.Stays(entry); }, moves.to + h * moves.stride, sums);
  const int count = ListEntries<kWarps>(
      0, keep, length, [&](int entry) { return head.Stays(entry); }, moves.from + h * moves.stride,
      sums);
  if (thread == 0) moves.counts[h] = count;
}

// The lanes of a warp copy one row of `bytes`, a multiple of sizeof(Word).
template <typename Word>
__device__ void CopyRow(void* rows, size_t from, size_t to, size_t bytes) {
  const size_t words = bytes / sizeof(Word);
  auto* base = static_cast<Word*>(rows);
  for (size_t i = threadIdx.x % kWarpSize; i < words; i += kWarpSize)
    base[to * words + i] = base[from * words + i];
}

// One warp per move; grid x: moves, y: heads.
__global__ void MoveEntriesKernel(CompactArgs args, Moves moves) {
  const int h = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first =
      static_cast<int>(blockIdx.x) * kMoveWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const KvPages& pages = args.pages;
  const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, h);
  const size_t row = moves.row_bytes;
  for (int i = first; i < moves.counts[h]; i += static_cast<int>(gridDim.x) * kMoveWarps) {
    const int entry_from = moves.from[h * moves.stride + i];
    const int entry_to = moves.to[h * moves.stride + i];
    const size_t from = PageIndex(pages.layout, blocks, entry_from);
    const size_t to = PageIndex(pages.layout, blocks, entry_to);
    for (void* rows : {pages.keys, pages.values}) {
      if (row % sizeof(uint4) == 0) {
        CopyRow<uint4>(rows, from, to, row);
      } else {
        CopyRow<uint16_t>(rows, from, to, row);
      }
    }
    if (lane != 0) continue;
    pages.positions[to] = pages.positions[from];
    if (pages.scores != nullptr) {
      pages.scores[StateIndex(pages.layout, blocks, entry_to)] =
          pages.scores[StateIndex(pages.layout, blocks, entry_from)];
    }
    if (pages.log_weights == nullptr) continue;
    const float* weights_from = PairOf(pages, blocks, entry_from);
    float* weights_to = PairOf(pages, blocks, entry_to);
    weights_to[0] = weights_from[0];
    weights_to[1] = weights_from[1];
  }
}

}  // namespace

cudaError_t Compact(const Context& context, const CompactArgs& args) {
  const int heads = args.tables.num_kv_heads;
  ScratchLayout layout;
  const size_t from = layout.Add<int32_t>(static_cast<size_t>(heads) * args.max_length);
  const size_t to = layout.Add<int32_t>(static_cast<size_t>(heads) * args.max_length);
  const size_t counts = layout.Add<int>(heads);
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error != cudaSuccess) return error;
  const Moves moves{At<int32_t>(scratch, from), At<int32_t>(scratch, to), At<int>(scratch, counts),
                    args.max_length, BytesOf(args.pages.layout.dtype, args.pages.layout.head_dim)};
  error = Launch(PlanMovesKernel, dim3(heads), dim3(kThreads), 0, context.stream, args, moves);
  if (error != cudaSuccess) return error;
  // A head moves at most half of its entries.
  constexpr int kMaxBlocks = 1024;
  const int blocks = std::clamp(CeilDiv(args.max_length, 2 * kMoveWarps), 1, kMaxBlocks);
  error = Launch(MoveEntriesKernel, dim3(blocks, heads), dim3(kMoveThreads), 0, context.stream,
                 args, moves);
  if (error != cudaSuccess) return error;
  return FinishHeads(context, {.keep = args.keep,
                               .growth = args.growth,
                               .next_position = args.next_position,
                               .slot = args.slot,
                               .layer = args.layer,
                               .pages = args.pages,
                               .tables = args.tables});
}

}  // namespace hydrant::cuda
