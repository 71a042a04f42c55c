// Three launches. A block per head decides which entries are evicted, and lists the new
// entries to keep and their target slots. Warps write the new entries. FinishHeads() updates
// lengths and victims as after a prompt. No write reads a slot that another write overwrites,
// so the order is free.
#include <algorithm>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/finish_heads.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/list_entries.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_element.cuh"
#include "kernels/cuda/page_row.cuh"
#include "kernels/cuda/radix.cuh"
#include "kernels/ops/append_pages.h"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kWriteThreads = 256;
constexpr int kWriteWarps = kWriteThreads / kWarpSize;

// In scratch. Write i of head h stores new token entries[h, i] - length at entry to[h, i].
struct Writes {
  int32_t* entries;  // [num_kv_heads, num_tokens]
  int32_t* to;       // [num_kv_heads, num_tokens]
  int* counts;       // [num_kv_heads]
  int32_t* keep;     // [num_kv_heads]
};

// The entries of one head, followed by the new ones.
struct Head {
  const AppendPagesArgs& args;
  DecodeRule rule;
  const PageIds* blocks;
  int head;
  int length;
  uint64_t cut = 0;  // the lowest rank that is kept

  __device__ size_t Index(int entry) const { return PageIndex(args.pages.layout, blocks, entry); }
  __device__ float& Stored(int entry) const {
    return args.pages.scores[StateIndex(args.pages.layout, blocks, entry)];
  }
  __device__ int32_t Position(int entry) const {
    return entry < length ? args.pages.positions[Index(entry)]
                          : args.first_position + entry - length;
  }
  __device__ float Score(int entry) const {
    if (rule.by_position) return static_cast<float>(Position(entry));
    if (!args.HasScores(rule)) return 0.0f;
    if (entry < length) return Stored(entry);
    return args.sums[head * args.sum_stride + entry - length];
  }
  __device__ bool IsProtected(int entry) const { return args.IsProtected(rule, Position(entry)); }
  __device__ uint64_t Rank(int entry) const { return RankKey(Score(entry), Position(entry)); }
  __device__ bool Stays(int entry) const { return IsProtected(entry) || Rank(entry) >= cut; }
};

__device__ Head HeadOf(const AppendPagesArgs& args, int head) {
  const SequenceTables& tables = args.tables;
  return {args, tables.rules[args.slot], tables.HeadBlocks(args.slot, args.layer, head), head,
          tables.lengths[tables.HeadIndex(args.slot, args.layer, head)]};
}

__global__ void PlanWritesKernel(AppendPagesArgs args, Writes writes) {
  __shared__ RadixSearch<int> search;
  __shared__ int sums[kWarps + 1];
  const int h = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  Head head = HeadOf(args, h);
  const int length = head.length, all = length + args.num_tokens;
  const int keep =
      args.Keep(length, args.tables.caps[args.tables.HeadIndex(args.slot, args.layer, h)]);
  if (keep < all) {
    int my_protected = 0, all_protected = 0;
    for (int entry = thread; entry < all; entry += kThreads)
      my_protected += head.IsProtected(entry) ? 1 : 0;
    BlockExclusiveSum<kWarps>(my_protected, sums, &all_protected);
    head.cut = FindRank(search, keep - all_protected, [&](auto visit) {
      for (int entry = thread; entry < all; entry += kThreads)
        if (!head.IsProtected(entry)) visit(head.Rank(entry));
    });
  }
  int32_t* entries = writes.entries + static_cast<int64_t>(h) * args.num_tokens;
  int32_t* to = writes.to + static_cast<int64_t>(h) * args.num_tokens;
  const int count = ListEntries<kWarps>(
      0, length, all, [&](int entry) { return head.Stays(entry); }, entries, sums);
  const int holes = ListEntries<kWarps>(
      0, 0, length, [&](int entry) { return !head.Stays(entry); }, to, sums);
  ListEntries<kWarps>(
      holes, length, keep, [](int) { return true; }, to, sums);
  if (thread != 0) return;
  writes.counts[h] = count;
  writes.keep[h] = keep;
}

// One warp per write; grid x: writes, y: heads.
__global__ void WriteNewKernel(AppendPagesArgs args, Writes writes) {
  const int h = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first =
      static_cast<int>(blockIdx.x) * kWriteWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const Head head = HeadOf(args, h);
  const KvPages& pages = args.pages;
  const int d = pages.layout.head_dim;
  for (int i = first; i < writes.counts[h]; i += static_cast<int>(gridDim.x) * kWriteWarps) {
    const int token = writes.entries[static_cast<int64_t>(h) * args.num_tokens + i] - head.length;
    const int to = writes.to[static_cast<int64_t>(h) * args.num_tokens + i];
    const size_t index = head.Index(to);
    const size_t from = h * args.kv_head_stride + static_cast<size_t>(token) * d;
    for (int j = lane; j < d; j += kWarpSize) {
      StoreRowElement(pages.layout.dtype, pages.keys, index * d + j, LoadElement(args.k, from + j));
      StoreRowElement(pages.layout.dtype, pages.values, index * d + j,
                      LoadElement(args.v, from + j));
    }
    if (lane != 0) continue;
    pages.positions[index] = args.first_position + token;
    if (args.HasScores(head.rule)) head.Stored(to) = head.Score(head.length + token);
  }
}

constexpr int kCopyThreads = 256;

// Grid x: entries, y: heads.
__global__ void CopyScoresKernel(ScoreRowsArgs args, bool to_pages) {
  const int h = static_cast<int>(blockIdx.y);
  const SequenceTables& tables = args.tables;
  const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, h);
  const int length = tables.lengths[tables.HeadIndex(args.slot, args.layer, h)];
  for (int entry = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); entry < length;
       entry += static_cast<int>(gridDim.x * blockDim.x)) {
    float* row = args.rows + h * args.stride + entry;
    float* score = args.pages.scores + StateIndex(args.pages.layout, blocks, entry);
    if (to_pages) {
      *score = *row;
    } else {
      *row = args.pages.positions[PageIndex(args.pages.layout, blocks, entry)] < args.scored_end
                 ? *score
                 : 0.0f;
    }
  }
}

// As CopyScoresKernel. A thread sums its entry's value in ascending order, as every backend does.
__global__ void TimesValueLengthsKernel(ScoreRowsArgs args) {
  const int h = static_cast<int>(blockIdx.y);
  const SequenceTables& tables = args.tables;
  const KvLayout& layout = args.pages.layout;
  const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, h);
  const int length = tables.lengths[tables.HeadIndex(args.slot, args.layer, h)];
  for (int entry = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); entry < length;
       entry += static_cast<int>(gridDim.x * blockDim.x)) {
    const size_t first = PageIndex(layout, blocks, entry) * layout.head_dim;
    double sum = 0.0;
    for (int i = 0; i < layout.head_dim; ++i) {
      const double x = LoadAnyElement(layout.dtype, args.pages.values, first + i);
      sum += x * x;
    }
    args.rows[h * args.stride + entry] *= static_cast<float>(sqrt(sum));
  }
}

dim3 RowBlocks(const ScoreRowsArgs& args) {
  constexpr int kMaxBlocks = 256;
  return dim3(std::clamp(CeilDiv(args.max_length, kCopyThreads), 1, kMaxBlocks),
              args.tables.num_kv_heads);
}

cudaError_t CopyScores(const Context& context, const ScoreRowsArgs& args, bool to_pages) {
  return Launch(CopyScoresKernel, RowBlocks(args), dim3(kCopyThreads), 0, context.stream, args,
                to_pages);
}

}  // namespace

cudaError_t AppendPages(const Context& context, const AppendPagesArgs& args) {
  const int heads = args.tables.num_kv_heads;
  const size_t most = static_cast<size_t>(heads) * args.num_tokens;
  ScratchLayout layout;
  const size_t entries = layout.Add<int32_t>(most);
  const size_t to = layout.Add<int32_t>(most);
  const size_t counts = layout.Add<int>(heads);
  const size_t keep = layout.Add<int32_t>(heads);
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error != cudaSuccess) return error;
  const Writes writes{At<int32_t>(scratch, entries), At<int32_t>(scratch, to),
                      At<int>(scratch, counts), At<int32_t>(scratch, keep)};
  error = Launch(PlanWritesKernel, dim3(heads), dim3(kThreads), 0, context.stream, args, writes);
  if (error != cudaSuccess) return error;
  constexpr int kMaxBlocks = 1024;
  const int blocks = std::clamp(CeilDiv(args.num_tokens, kWriteWarps), 1, kMaxBlocks);
  error = Launch(WriteNewKernel, dim3(blocks, heads), dim3(kWriteThreads), 0, context.stream, args,
                 writes);
  if (error != cudaSuccess) return error;
  return FinishHeads(context, {.keep = writes.keep,
                               .next_position = args.NextPosition(),
                               .slot = args.slot,
                               .layer = args.layer,
                               .pages = args.pages,
                               .tables = args.tables});
}

cudaError_t GatherScores(const Context& context, const ScoreRowsArgs& args) {
  return CopyScores(context, args, false);
}

cudaError_t ScatterScores(const Context& context, const ScoreRowsArgs& args) {
  return CopyScores(context, args, true);
}

cudaError_t TimesValueLengths(const Context& context, const ScoreRowsArgs& args) {
  return Launch(TimesValueLengthsKernel, RowBlocks(args), dim3(kCopyThreads), 0, context.stream,
                args);
}

}  // namespace hydrant::cuda
