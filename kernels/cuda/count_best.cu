// Ranks all heads' unprotected entries together, digit by digit (shared_search.cuh). Then every
// head counts its entries above the last kept rank. A head has at most one entry at exactly that
// rank; the remaining places go to the lowest heads that have one.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/shared_search.cuh"
#include "kernels/ops/count_best.h"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEntriesPerBlock = 16 * kThreads;

// The entries of one head, numbered over the layers.
struct Head {
  const CountBestArgs& args;
  const PageIds* blocks;
  int length;

  __device__ Head(const CountBestArgs& count_args, int head) : args(count_args) {
    const SequenceTables& tables = args.tables;
    const int layer = args.layer_begin + head / tables.num_kv_heads;
    const int h = head % tables.num_kv_heads;
    blocks = tables.HeadBlocks(args.slot, layer, h);
    length = tables.lengths[tables.HeadIndex(args.slot, layer, h)];
  }

  // Calls visit(rank) for each unprotected entry in [begin, end), using all threads of a block.
  template <typename Visit>
  __device__ void ForEach(int begin, int end, Visit visit) const {
    for (int entry = begin + static_cast<int>(threadIdx.x); entry < min(end, length);
         entry += kThreads) {
      const KvPages& pages = args.pages;
      const int32_t position = pages.positions[PageIndex(pages.layout, blocks, entry)];
      if (args.IsProtected(position)) continue;
      visit(RankKey(pages.scores[StateIndex(pages.layout, blocks, entry)], position));
    }
  }
};

// Grid x: a head's entries, y: heads.
__global__ void CountDigitKernel(CountBestArgs args, SharedSearch search, int digit, int shift,
                                 int last_shift) {
  __shared__ unsigned histogram[256];
  __shared__ Progress shared;
  const int thread = static_cast<int>(threadIdx.x);
  Progress known = {0, static_cast<int>(args.total)};
  if (digit > 0) known = After(search, digit - 1, last_shift, histogram, &shared);
  __syncthreads();
  if (thread == 0 && blockIdx.x == 0 && blockIdx.y == 0) search.progress[digit] = known;
  histogram[thread] = 0;
  __syncthreads();
  const uint64_t mask = digit == 0 ? 0 : ~uint64_t{0} << (shift + 8);
  const int begin = static_cast<int>(blockIdx.x) * kEntriesPerBlock;
  Head(args, static_cast<int>(blockIdx.y))
      .ForEach(begin, begin + kEntriesPerBlock, [&](uint64_t rank) {
        if ((rank & mask) == known.prefix) atomicAdd(&histogram[rank >> shift & 255], 1u);
      });
  __syncthreads();
  if (histogram[thread] != 0)
    atomicAdd(&search.histograms[digit * 256 + thread], histogram[thread]);
}

// One block per head.
__global__ void CountAboveKernel(CountBestArgs args, SharedSearch search, int digits,
                                 int last_shift, int32_t* equal) {
  __shared__ unsigned histogram[256];
  __shared__ Progress shared;
  __shared__ int counts[2];
  const int head = static_cast<int>(blockIdx.x);
  if (threadIdx.x < 2) counts[threadIdx.x] = 0;
  const Progress last = After(search, digits - 1, last_shift, histogram, &shared);
  Head(args, head).ForEach(0, args.max_length, [&](uint64_t rank) {
    if (rank >= last.prefix) atomicAdd(&counts[rank > last.prefix ? 0 : 1], 1);
  });
  __syncthreads();
  if (threadIdx.x != 0) return;
  args.counts[head] = counts[0];
  equal[head] = counts[1];
  if (head == 0) search.progress[digits] = last;
}

__global__ void ShareLastRankKernel(CountBestArgs args, SharedSearch search, int digits, int heads,
                                    const int32_t* equal) {
  int left = search.progress[digits].left;
  for (int head = 0; head < heads && left > 0; ++head) {
    args.counts[head] += equal[head];
    left -= equal[head];
  }
}

}  // namespace

cudaError_t CountBest(const Context& context, const CountBestArgs& args) {
  const int heads = (args.layer_end - args.layer_begin) * args.tables.num_kv_heads;
  if (args.total <= 0)
    return cudaMemsetAsync(args.counts, 0, heads * sizeof(int32_t), context.stream);
  const Digits digits(args.next_position);
  ScratchLayout layout;
  const size_t histograms = layout.Add<unsigned>(256 * digits.shifts.size());
  const size_t progress = layout.Add<Progress>(digits.shifts.size() + 1);
  const size_t equal = layout.Add<int32_t>(heads);
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error != cudaSuccess) return error;
  const SharedSearch search{At<unsigned>(scratch, histograms), At<Progress>(scratch, progress)};
  error = cudaMemsetAsync(search.histograms, 0, 256 * digits.shifts.size() * sizeof(unsigned),
                          context.stream);
  int last_shift = 0;
  for (int digit = 0; digit < digits.count && error == cudaSuccess; ++digit) {
    const dim3 grid(CeilDiv(args.max_length, kEntriesPerBlock), heads);
    error = Launch(CountDigitKernel, grid, dim3(kThreads), 0, context.stream, args, search, digit,
                   digits.shifts[digit], last_shift);
    last_shift = digits.shifts[digit];
  }
  if (error != cudaSuccess) return error;
  error = Launch(CountAboveKernel, dim3(heads), dim3(kThreads), 0, context.stream, args, search,
                 digits.count, last_shift, At<int32_t>(scratch, equal));
  if (error != cudaSuccess) return error;
  return Launch(ShareLastRankKernel, dim3(1), dim3(1), 0, context.stream, args, search,
                digits.count, heads, static_cast<const int32_t*>(At<int32_t>(scratch, equal)));
}

}  // namespace hydrant::cuda
