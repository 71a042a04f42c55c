// Keeps every head's unprotected entries down to a rank (score, then position) found by radix
// search; one ordered pass per head writes the kept positions. With a budget per head, a block
// finds its head's cut. With a layer budget, all heads' entries are counted together, one launch
// per digit of the ranks: a block adds its part to the digit's histogram, and derives the search
// state from the previous digit's.
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/shared_search.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kCountThreads = 256;
constexpr int kEntriesPerBlock = 16 * kCountThreads;

// Range of a prompt's unprotected entries.
struct OpenRange {
  int begin, end;

  __host__ __device__ explicit OpenRange(const SelectArgs& args)
      : begin(args.sinks < args.n ? args.sinks : args.n),
        end(begin < args.n - args.recent ? args.n - args.recent : begin) {}
  __host__ __device__ int size() const { return end - begin; }
  __device__ bool Has(int i) const { return i >= begin && i < end; }
};

__device__ uint64_t RankOf(const SelectArgs& args, int head, int i) {
  return RankKey(args.scores[head * args.score_stride + i], i);
}

// The rank of the `need`-th best unprotected entry of a head. All threads of a block call.
__device__ uint64_t FindCut(const SelectArgs& args, int head, int need, RadixSearch<int>& search) {
  const OpenRange open(args);
  return FindRank(search, need, [&](auto visit) {
    for (int i = open.begin + static_cast<int>(threadIdx.x); i < open.end; i += kThreads)
      visit(RankOf(args, head, i));
  });
}

// Writes a head's protected positions and those with stays(rank); returns their number.
template <typename Stays>
__device__ int WriteKept(const SelectArgs& args, int head, int* sums, Stays stays) {
  const OpenRange open(args);
  int32_t* kept = args.kept + head * args.kept_stride;
  int written = 0;
  for (int tile = 0; tile < args.n; tile += kThreads) {
    const int i = tile + static_cast<int>(threadIdx.x);
    const bool keep = i < args.n && (!open.Has(i) || stays(RankOf(args, head, i)));
    int keeps = 0;
    const int place = written + BlockExclusiveSum<kWarps>(keep ? 1 : 0, sums, &keeps);
    if (keep) kept[place] = i;
    written += keeps;
  }
  return written;
}

__global__ void SelectKernel(SelectArgs args) {
  __shared__ RadixSearch<int> search;
  __shared__ int sums[kWarps + 1];
  const int head = static_cast<int>(blockIdx.x);
  const int wanted = args.keep[head] - (args.n - OpenRange(args).size());
  const uint64_t cut = FindCut(args, head, wanted, search);
  WriteKept(args, head, sums, [&](uint64_t rank) { return rank >= cut; });
}

// Counts one digit (the 8 bits from `shift`) of the ranks that begin with the prefix. `left`: the
// unprotected entries that all heads keep. Grid x: a head's entries, y: heads.
__global__ void CountDigitKernel(SelectArgs args, SharedSearch search, int left, int digit,
                                 int shift, int last_shift) {
  __shared__ unsigned histogram[256];
  __shared__ Progress shared;
  const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  Progress known = {0, left};
  if (digit > 0) known = After(search, digit - 1, last_shift, histogram, &shared);
  __syncthreads();
  if (thread == 0 && head == 0 && blockIdx.x == 0) search.progress[digit] = known;
  histogram[thread] = 0;
  __syncthreads();
  const OpenRange open(args);
  const uint64_t mask = digit == 0 ? 0 : ~uint64_t{0} << (shift + 8);
  const int begin = open.begin + static_cast<int>(blockIdx.x) * kEntriesPerBlock;
  const int end = min(begin + kEntriesPerBlock, open.end);
  for (int i = begin + thread; i < end; i += kCountThreads) {
    const uint64_t rank = RankOf(args, head, i);
    if ((rank & mask) == known.prefix) atomicAdd(&histogram[rank >> shift & 255], 1u);
  }
  __syncthreads();
  if (histogram[thread] != 0)
    atomicAdd(&search.histograms[digit * 256 + thread], histogram[thread]);
}

// One block per head. digits == 0: protected entries take the whole budget.
__global__ void SelectOfLayerKernel(SelectArgs args, SharedSearch search, int digits,
                                    int last_shift) {
  __shared__ unsigned histogram[256];
  __shared__ Progress shared;
  __shared__ int sums[kWarps + 1];
  const int head = static_cast<int>(blockIdx.x);
  uint64_t cut = UINT64_MAX;
  if (digits > 0) {
    const Progress last = After(search, digits - 1, last_shift, histogram, &shared);
    // A head has at most one entry at exactly the last rank: the lowest heads keep theirs.
    const int position = static_cast<int>(static_cast<uint32_t>(last.prefix));
    int before = 0;
    for (int h = 0; h < head; ++h) before += RankOf(args, h, position) == last.prefix ? 1 : 0;
    cut = before < last.left ? last.prefix : last.prefix + 1;
  }
  const int count = WriteKept(args, head, sums, [&](uint64_t rank) { return rank >= cut; });
  if (threadIdx.x == 0) args.counts[head] = count;
}

cudaError_t SelectOfLayer(const Context& context, const SelectArgs& args) {
  const OpenRange open(args);
  const int heads = args.num_kv_heads;
  const int left = args.total - heads * (args.n - open.size());
  Digits digits(args.n);
  if (left <= 0) digits.count = 0;
  ScratchLayout layout;
  const size_t histograms = layout.Add<unsigned>(256 * digits.shifts.size());
  const size_t progress = layout.Add<Progress>(digits.shifts.size() + 1);
  void* scratch = nullptr;
  cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error != cudaSuccess) return error;
  const SharedSearch search{At<unsigned>(scratch, histograms), At<Progress>(scratch, progress)};
  error = cudaMemsetAsync(search.histograms, 0, 256 * digits.shifts.size() * sizeof(unsigned),
                          context.stream);
  int last_shift = 0;
  for (int digit = 0; digit < digits.count && error == cudaSuccess; ++digit) {
    const dim3 grid(CeilDiv(open.size(), kEntriesPerBlock), heads);
    error = Launch(CountDigitKernel, grid, dim3(kCountThreads), 0, context.stream, args, search,
                   left, digit, digits.shifts[digit], last_shift);
    last_shift = digits.shifts[digit];
  }
  if (error != cudaSuccess) return error;
  return Launch(SelectOfLayerKernel, dim3(heads), dim3(kThreads), 0, context.stream, args, search,
                digits.count, last_shift);
}

}  // namespace

cudaError_t Select(const Context& context, const SelectArgs& args) {
  if (args.counts != nullptr) return SelectOfLayer(context, args);
  return Launch(SelectKernel, dim3(args.num_kv_heads), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
