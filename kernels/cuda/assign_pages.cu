#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/assign_pages.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

// One block, from the last head to the first: a head's pages come from below its row, or from its
// very place, so nothing is overwritten that a lower head still needs. Within a head from the last
// page to the first, a tile at a time, read before it is written.
__global__ void AssignPagesKernel(AssignPagesArgs args) {
  const SequenceTables& tables = args.tables;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t width = tables.row_width[args.slot];
  PageIds* rows = args.blocks + (tables.HeadBlocks(args.slot, args.layer, 0) - tables.blocks);
  int64_t from = AssignedFrom(args.keep, tables.num_kv_heads, args.block_size);
  for (int h = tables.num_kv_heads - 1; h >= 0; --h) {
    const int count = static_cast<int>(PagesOf(args.keep[h], args.block_size));
    from -= count;
    for (int end = count; end > 0; end -= kThreads) {
      const int i = end - 1 - thread;
      const PageIds ids = i >= 0 ? rows[from + i] : PageIds();
      __syncthreads();
      if (i >= 0) rows[static_cast<int64_t>(h) * width + i] = ids;
      __syncthreads();
    }
  }
}

}  // namespace

cudaError_t AssignPages(const Context& context, const AssignPagesArgs& args) {
  return Launch(AssignPagesKernel, dim3(1), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
