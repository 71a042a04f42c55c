#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/assign_pages.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

// One block. The page list and the table rows do not overlap.
__global__ void AssignPagesKernel(AssignPagesArgs args) {
  const SequenceTables& tables = args.tables;
  const int thread = static_cast<int>(threadIdx.x);
  const PageIds* list = args.blocks + UnassignedBegin(tables, args.slot, args.num_heads);
  int32_t left = tables.unassigned[args.slot];
  for (int h = 0; h < tables.num_kv_heads; ++h) {
    PageIds* row = args.blocks + (tables.HeadBlocks(args.slot, args.layer, h) - tables.blocks);
    const int count = static_cast<int>(PagesOf(args.keep[h], args.block_size));
    for (int i = thread; i < count; i += kThreads) row[i] = list[left - 1 - i];
    left -= count;
  }
  __syncthreads();  // every thread has read the count
  if (thread == 0) tables.unassigned[args.slot] = left;
}

// One block, head by head: a head's offset in the list is known once the heads
// before it are counted.
__global__ void ReturnPagesKernel(ReturnPagesArgs args) {
  const SequenceTables& tables = args.tables;
  const int thread = static_cast<int>(threadIdx.x);
  PageIds* list = args.blocks + UnassignedBegin(tables, args.slot, args.num_heads);
  int32_t left = tables.unassigned[args.slot];
  for (int head = 0; head < args.layer_end * tables.num_kv_heads; ++head) {
    const PageIds* row = tables.HeadBlocks(args.slot, 0, head);
    const int32_t length = tables.lengths[tables.HeadIndex(args.slot, 0, head)];
    const int32_t keep = min(args.keep[head], length);
    const int first = static_cast<int>(PagesOf(keep, args.block_size));
    const int count = static_cast<int>(PagesOf(length, args.block_size)) - first;
    for (int i = thread; i < count; i += kThreads) list[left + i] = row[first + i];
    left += count;
  }
  __syncthreads();  // every thread has read the lengths and counts that change below
  if (thread == 0) tables.unassigned[args.slot] = left;
  for (int head = thread; head < args.layer_end * tables.num_kv_heads; head += kThreads)
    args.keep[head] = min(args.keep[head], tables.lengths[tables.HeadIndex(args.slot, 0, head)]);
}

}  // namespace

cudaError_t AssignPages(const Context& context, const AssignPagesArgs& args) {
  return Launch(AssignPagesKernel, dim3(1), dim3(kThreads), 0, context.stream, args);
}

cudaError_t ReturnPages(const Context& context, const ReturnPagesArgs& args) {
  return Launch(ReturnPagesKernel, dim3(1), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
