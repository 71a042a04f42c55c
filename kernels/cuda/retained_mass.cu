// One block per head. Weights are summed as integers, so that their order does not matter.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/radix.cuh"
#include "kernels/ops/retained_mass.h"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr double kUnits = 4294967296.0;
using Mass = unsigned long long;

// The entries of a head of a slot, numbered over all layers.
struct Head {
  const KvPages& pages;
  const PageIds* blocks;
  int length;

  __device__ Head(const KvPages& all_pages, const SequenceTables& tables, int slot, int head)
      : pages(all_pages),
        blocks(tables.HeadBlocks(slot, head / tables.num_kv_heads, head % tables.num_kv_heads)),
        length(tables.lengths[tables.HeadIndex(slot, head / tables.num_kv_heads,
                                               head % tables.num_kv_heads)]) {}

  // Calls visit(entry, attention received) for all entries, with all threads of a block.
  template <typename Visit>
  __device__ void ForEach(Visit visit) const {
    for (int entry = static_cast<int>(threadIdx.x); entry < length; entry += kThreads) {
      visit(entry, static_cast<Mass>(MassUnits(WindowSumOf(pages, blocks, entry))));
    }
  }
  __device__ int32_t Position(int entry) const {
    return pages.positions[PageIndex(pages.layout, blocks, entry)];
  }
  __device__ float Score(int entry) const {
    return pages.scores[StateIndex(pages.layout, blocks, entry)];
  }
};

__global__ void RetainedMassKernel(RetainedMassArgs args) {
  __shared__ Mass sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  Mass mine = 0;
  Head(args.pages, args.tables, args.slot, static_cast<int>(blockIdx.x))
      .ForEach([&](int, Mass received) { mine += received; });
  atomicAdd(&sum, mine);
  __syncthreads();
  if (threadIdx.x == 0)
    args.mass[blockIdx.x] = static_cast<float>(static_cast<double>(sum) / (kUnits * args.queries));
}

__global__ void KeptMassKernel(KeptMassArgs args) {
  __shared__ Mass sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  const int h = static_cast<int>(blockIdx.x);
  const float* received = args.window_sums + h * args.window_stride;
  Mass mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < args.keep[h]; i += kThreads)
    mine += static_cast<Mass>(MassUnits(received[args.PositionOf(h, i)]));
  atomicAdd(&sum, mine);
  __syncthreads();
  if (threadIdx.x == 0)
    args.mass[h] = static_cast<float>(static_cast<double>(sum) / (kUnits * args.queries));
}

__global__ void KeepForMassKernel(KeepForMassArgs args, long long need) {
  __shared__ RadixSearch<Mass> search;
  __shared__ Mass guarded_mass, open_mass;
  __shared__ int guarded, above;
  const Head head(args.pages, args.tables, args.slot, static_cast<int>(blockIdx.x));
  if (threadIdx.x == 0) {
    guarded_mass = open_mass = 0;
    guarded = above = 0;
  }
  __syncthreads();
  head.ForEach([&](int entry, Mass received) {
    if (!args.IsProtected(head.Position(entry))) {
      atomicAdd(&open_mass, received);
      return;
    }
    atomicAdd(&guarded_mass, received);
    atomicAdd(&guarded, 1);
  });
  __syncthreads();
  const long long left = need - static_cast<long long>(guarded_mass);
  if (left <= 0) return;  // the protected entries suffice, and they are kept
  int32_t enough = head.length;
  if (static_cast<long long>(open_mass) >= left) {
    const auto for_each = [&](auto visit) {
      head.ForEach([&](int entry, Mass received) {
        const int32_t position = head.Position(entry);
        if (!args.IsProtected(position)) visit(RankKey(head.Score(entry), position), received);
      });
    };
    search.Find(static_cast<Mass>(left), [&](auto visit) {
      for_each([&](uint64_t rank, Mass received) {
        visit(static_cast<uint32_t>(rank >> 32), received);
      });
    });
    const uint32_t score = search.threshold();
    const Mass remaining = search.remaining();
    __syncthreads();
    search.Find(remaining, [&](auto visit) {
      for_each([&](uint64_t rank, Mass received) {
        if (static_cast<uint32_t>(rank >> 32) == score)
          visit(static_cast<uint32_t>(rank), received);
      });
    });
    const uint64_t cut = static_cast<uint64_t>(score) << 32 | search.threshold();
    for_each([&](uint64_t rank, Mass) {
      if (rank >= cut) atomicAdd(&above, 1);
    });
    __syncthreads();
    enough = guarded + above;
  }
  if (enough > args.most) enough = head.length;
  if (threadIdx.x == 0) args.keep[blockIdx.x] = max(args.keep[blockIdx.x], enough);
}

}  // namespace

cudaError_t RetainedMass(const Context& context, const RetainedMassArgs& args) {
  const int heads = args.tables.num_layers * args.tables.num_kv_heads;
  return Launch(RetainedMassKernel, dim3(heads), dim3(kThreads), 0, context.stream, args);
}

cudaError_t KeptMass(const Context& context, const KeptMassArgs& args) {
  return Launch(KeptMassKernel, dim3(args.num_kv_heads), dim3(kThreads), 0, context.stream, args);
}

cudaError_t KeepForMass(const Context& context, const KeepForMassArgs& args) {
  const int heads = args.tables.num_layers * args.tables.num_kv_heads;
  const auto need = static_cast<long long>(double{args.min_mass} * args.queries * kUnits);
  return Launch(KeepForMassKernel, dim3(heads), dim3(kThreads), 0, context.stream, args, need);
}

}  // namespace hydrant::cuda
