#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/share_budget.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 1024;

__device__ int64_t Share(const ShareBudgetArgs& args, int head) {
  return int64_t{args.floor_ppm} * args.base +
         int64_t{kPartsPerMillion - args.floor_ppm} * (args.best[head] - args.counted);
}

// One block. The entries left over by rounding down go one each to the heads with the largest
// remainders, lower heads first on ties.
__global__ void ShareBudgetKernel(ShareBudgetArgs args, int32_t* shares) {
  __shared__ unsigned long long given;
  const int thread = static_cast<int>(threadIdx.x);
  if (args.others_follow) {
    for (int h = thread; h < args.heads; h += kThreads) {
      const int64_t share = (Share(args, h) + kPartsPerMillion - 1) / kPartsPerMillion;
      const int64_t best = args.best[h] - args.counted;
      args.keep[h] = static_cast<int32_t>(best > share ? best : share) + args.guarded;
    }
    return;
  }
  if (thread == 0) given = 0;
  __syncthreads();
  for (int h = thread; h < args.heads; h += kThreads)
    atomicAdd(&given, static_cast<unsigned long long>(Share(args, h) / kPartsPerMillion));
  __syncthreads();
  const int64_t left = int64_t{args.heads} * args.base - static_cast<int64_t>(given);
  for (int h = thread; h < args.heads; h += kThreads) {
    const int64_t share = Share(args, h), remainder = share % kPartsPerMillion;
    int before = 0;
    for (int other = 0; other < args.heads; ++other) {
      const int64_t theirs = Share(args, other) % kPartsPerMillion;
      before += theirs > remainder || (theirs == remainder && other < h) ? 1 : 0;
    }
    shares[h] = static_cast<int32_t>(share / kPartsPerMillion) + (before < left ? 1 : 0);
  }
  __syncthreads();  // keep may alias best
  for (int h = thread; h < args.heads; h += kThreads) args.keep[h] = shares[h] + args.guarded;
}

}  // namespace

cudaError_t ShareBudget(const Context& context, const ShareBudgetArgs& args) {
  ScratchLayout layout;
  const size_t shares = layout.Add<int32_t>(args.heads);
  void* scratch = nullptr;
  const cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
  if (error != cudaSuccess) return error;
  return Launch(ShareBudgetKernel, dim3(1), dim3(kThreads), 0, context.stream, args,
                At<int32_t>(scratch, shares));
}

}  // namespace hydrant::cuda
