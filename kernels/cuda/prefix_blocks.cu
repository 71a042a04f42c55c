#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_row.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

// One thread block per (prefix block, KV head). Neighbouring threads access neighbouring elements,
// so that the pool, which may be in host memory, is accessed in whole lines.
template <bool kSave>
__global__ void MovePrefixKernel(PrefixBlocksArgs args) {
  const int block = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const PrefixBlocks& pool = args.pool;
  const size_t keys = pool.KeysAt(args.blocks[block], args.layer, head);
  const size_t values = keys + pool.ValuesOffset();
  const int64_t first =
      head * args.kv_head_stride + block * int64_t{kPrefixBlockTokens} * args.row_stride;
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(pool.HeadSize());
       i += kThreads) {
    const int64_t at = first + i / pool.head_dim * args.row_stride + i % pool.head_dim;
    if constexpr (kSave) {
      StoreRowElement(pool.dtype, pool.memory, keys + i, LoadElement(args.k, at));
      if (args.v.data != nullptr)
        StoreRowElement(pool.dtype, pool.memory, values + i, LoadElement(args.v, at));
    } else {
      StoreElement(args.k, at, LoadRowElement(pool.dtype, pool.memory, keys + i));
      if (args.v.data != nullptr)
        StoreElement(args.v, at, LoadRowElement(pool.dtype, pool.memory, values + i));
    }
  }
}

dim3 GridOf(const PrefixBlocksArgs& args) { return dim3(args.count, args.pool.num_kv_heads); }

}  // namespace

cudaError_t SavePrefix(const Context& context, const PrefixBlocksArgs& args) {
  if (args.count == 0) return cudaSuccess;
  return Launch(MovePrefixKernel<true>, GridOf(args), dim3(kThreads), 0, context.stream, args);
}

cudaError_t LoadPrefix(const Context& context, const PrefixBlocksArgs& args) {
  if (args.count == 0) return cudaSuccess;
  return Launch(MovePrefixKernel<false>, GridOf(args), dim3(kThreads), 0, context.stream, args);
}

}  // namespace hydrant::cuda
