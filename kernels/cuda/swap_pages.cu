#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 128;

// Page `from` of one array to page `to` of the other. The unit of the copy divides every page.
template <typename Unit>
__device__ void CopyPart(const void* source, size_t from, void* target, size_t to, size_t bytes) {
  const size_t units = bytes / sizeof(Unit);
  const Unit* in = static_cast<const Unit*>(source) + from * units;
  Unit* out = static_cast<Unit*>(target) + to * units;
  for (size_t i = threadIdx.x; i < units; i += kThreads) out[i] = in[i];
}

// A block per page. Widest accesses where the vectors of a page are whole numbers of them: the
// arrays begin where such an access may.
template <bool kOut>
__global__ void SwapPagesKernel(SwapPagesArgs args) {
  const PageSwap swap = args.swaps[blockIdx.x];
  const KvPages& source = kOut ? args.pool : args.host;
  const KvPages& target = kOut ? args.host : args.pool;
  const size_t from = kOut ? swap.page : swap.host_page;
  const size_t to = kOut ? swap.host_page : swap.page;
  const size_t slots = source.layout.block_size;
  const size_t vectors = BytesOf(source.layout.dtype, slots * source.layout.head_dim);
  if (vectors % sizeof(uint4) == 0) {
    CopyPart<uint4>(source.keys, from, target.keys, to, vectors);
    CopyPart<uint4>(source.values, from, target.values, to, vectors);
  } else {
    CopyPart<uint16_t>(source.keys, from, target.keys, to, vectors);
    CopyPart<uint16_t>(source.values, from, target.values, to, vectors);
  }
  CopyPart<int32_t>(source.positions, from, target.positions, to, slots * sizeof(int32_t));
  CopyPart<float>(source.scores, from, target.scores, to, slots * sizeof(float));
  CopyPart<float>(source.log_weights, from, target.log_weights, to, 2 * slots * sizeof(float));
}

}  // namespace

cudaError_t SwapOutPages(const Context& context, const SwapPagesArgs& args) {
  if (args.count == 0) return cudaSuccess;
  return Launch(SwapPagesKernel<true>, dim3(args.count), dim3(kThreads), 0, context.stream, args);
}

cudaError_t SwapInPages(const Context& context, const SwapPagesArgs& args) {
  if (args.count == 0) return cudaSuccess;
  return Launch(SwapPagesKernel<false>, dim3(args.count), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
