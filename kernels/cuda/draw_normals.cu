// Generates random weights on the device: 13 billion of them would take minutes on a
// host, and more to copy.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_element.cuh"
#include "kernels/cuda/ptx.cuh"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // values per thread

__global__ void DrawNormalsKernel(DrawNormalsArgs args) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kEach + threadIdx.x;
  for (int i = 0; i < kEach; ++i) {
    const int64_t index = first + i * kThreads;
    if (index >= args.count) return;
    float value =
        NormalAt(args.normals.key, static_cast<uint64_t>(args.first + index)) * args.normals.stddev;
    if (args.rounded_to_bf16) value = HalfOf<true>(PackHalves<true>(value, 0.0f), 0);
    StoreElement(args.dtype, args.out, static_cast<size_t>(index), value);
  }
}

}  // namespace

cudaError_t DrawNormals(const Context& context, const DrawNormalsArgs& args) {
  if (args.count == 0) return cudaSuccess;
  return Launch(DrawNormalsKernel, dim3(CeilDiv(args.count, kThreads * kEach)), dim3(kThreads), 0,
                context.stream, args);
}

}  // namespace hydrant::cuda
