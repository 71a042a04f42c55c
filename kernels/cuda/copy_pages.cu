#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 128;

// Copies page `from` of one array to page `to` of the other. A page is a multiple of sizeof(Unit).
template <typename Unit>
__device__ void CopyPart(const void* source, size_t from, void* target, size_t to, size_t bytes) {
  const size_t units = bytes / sizeof(Unit);
  const Unit* in = static_cast<const Unit*>(source) + from * units;
  Unit* out = static_cast<Unit*>(target) + to * units;
  for (size_t i = threadIdx.x; i < units; i += kThreads) out[i] = in[i];
}

// Copies floats if both arrays exist.
__device__ void CopyFloats(const float* source, size_t from, float* target, size_t to,
                           size_t count) {
  if (source == nullptr || target == nullptr) return;
  for (size_t i = threadIdx.x; i < count; i += kThreads) target[to + i] = source[from + i];
}

// One block per page. Uses 16-byte accesses where a page's vectors are a multiple of 16 bytes; the
// arrays are aligned for it. `vectors`: bytes of a page's keys.
__global__ void CopyPagesKernel(CopyPagesArgs args, size_t vectors) {
  const KvPages& source = args.from;
  const KvPages& target = args.to;
  const PageCopy page = args.copies[blockIdx.x];
  const size_t slots = source.layout.block_size;
  if (page.to.data != kNotCopied) {
    const size_t from = page.from.data, to = page.to.data;
    if (vectors % sizeof(uint4) == 0) {
      CopyPart<uint4>(source.keys, from, target.keys, to, vectors);
      CopyPart<uint4>(source.values, from, target.values, to, vectors);
    } else {
      CopyPart<uint16_t>(source.keys, from, target.keys, to, vectors);
      CopyPart<uint16_t>(source.values, from, target.values, to, vectors);
    }
    CopyPart<int32_t>(source.positions, from, target.positions, to, slots * sizeof(int32_t));
  }
  if (page.to.state != kNotCopied) {
    const size_t from = page.from.state, to = page.to.state;
    CopyFloats(source.scores, from * slots, target.scores, to * slots, slots);
    CopyFloats(source.log_weights, from * source.layout.LogWeightStride(), target.log_weights,
               to * target.layout.LogWeightStride(), 2 * slots);
  }
}

}  // namespace

cudaError_t CopyPages(const Context& context, const CopyPagesArgs& args) {
  if (args.count == 0) return cudaSuccess;
  const KvLayout& layout = args.from.layout;
  const size_t vectors =
      BytesOf(layout.dtype, static_cast<size_t>(layout.block_size) * layout.head_dim);
  return Launch(CopyPagesKernel, dim3(args.count), dim3(kThreads), 0, context.stream, args,
                vectors);
}

}  // namespace hydrant::cuda
