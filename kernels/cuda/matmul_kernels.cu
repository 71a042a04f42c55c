// Kernels around the library's matrix product: embedding look-up, conversion of activations to the
// weight's dtype, bias, and the choice between the library's product and ours.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul_kernels.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tile_rows.h"
#include "kernels/cuda/tiled_matmul.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void EmbedKernel(const uint32_t* ids, const void* table, bool bf16, int cols, float* out,
                            bool accumulate, float scale) {
  WaitForPredecessor();
  const size_t row = blockIdx.x;
  const size_t from = static_cast<size_t>(ids[row]) * cols;
  for (int j = static_cast<int>(threadIdx.x); j < cols; j += kThreads) {
    float value;
    if (bf16) {
      value = HalfOf<true>(static_cast<const uint16_t*>(table)[from + j], 0);
    } else {
      value = static_cast<const float*>(table)[from + j];
    }
    float& to = out[row * cols + j];
    to = (accumulate ? to : 0.0f) + scale * value;
  }
}

// Four elements per thread.
__global__ void RoundToBF16Kernel(const float* x, int64_t count, uint16_t* out) {
  WaitForPredecessor();
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (first + 4 <= count) {
    const float4 v = *reinterpret_cast<const float4*>(x + first);
    *reinterpret_cast<uint2*>(out + first) =
        make_uint2(PackHalves<true>(v.x, v.y), PackHalves<true>(v.z, v.w));
    return;
  }
  for (int64_t i = first; i < count; ++i)
    out[i] = static_cast<uint16_t>(PackHalves<true>(x[i], 0.0f));
}

__global__ void WidenBF16Kernel(const uint16_t* x, int64_t count, float* out) {
  WaitForPredecessor();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = HalfOf<true>(x[i], 0);
}

// One thread per column; grid y: rows, strided beyond the grid limit.
__global__ void AddBiasKernel(const float* bias, int m, int n, float* y) {
  WaitForPredecessor();
  const int j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (j >= n) return;
  const float value = bias[j];
  for (int row = static_cast<int>(blockIdx.y); row < m; row += static_cast<int>(gridDim.y))
    y[static_cast<size_t>(row) * n + j] += value;
}

}  // namespace

cudaError_t AddBias(cudaStream_t stream, const float* bias, int m, int n, float* y) {
  if (m == 0) return cudaSuccess;
  constexpr int kMaxRows = 65535;
  const dim3 grid(CeilDiv(n, kThreads), m < kMaxRows ? m : kMaxRows);
  return LaunchOverlapped(AddBiasKernel, grid, dim3(kThreads), 0, stream, bias, m, n, y);
}

cudaError_t RoundToBF16(cudaStream_t stream, const float* x, int64_t count, uint16_t* out) {
  if (count == 0) return cudaSuccess;
  return LaunchOverlapped(RoundToBF16Kernel, dim3(CeilDiv(count, kThreads * 4)), dim3(kThreads), 0,
                          stream, x, count, out);
}

cudaError_t WidenBF16(const Context& context, const void* x, int64_t count, const void** widened) {
  void* out = nullptr;
  const cudaError_t error = context.operands->Get(static_cast<size_t>(count) * sizeof(float), &out);
  *widened = out;
  if (error != cudaSuccess || count == 0) return error;
  return LaunchOverlapped(WidenBF16Kernel, dim3(CeilDiv(count, kThreads)), dim3(kThreads), 0,
                          context.stream, static_cast<const uint16_t*>(x), count,
                          static_cast<float*>(out));
}

cudaError_t Matmul(const Context& context, const MatmulArgs& args) {
  const auto& weight = static_cast<const CudaWeight&>(*args.weight);
  if (weight.InTiles()) return MatmulTiles(context, args);
  if (MultipliesRows(context, weight, args.m)) return MatmulRows(context, args);
  MatmulArgs library = args;
  cudaError_t error = cudaSuccess;
  if (weight.dtype() == DType::kF32 && args.x_dtype == DType::kBF16) {
    library.x_dtype = DType::kF32;
    error = WidenBF16(context, args.x, static_cast<int64_t>(args.m) * weight.cols(), &library.x);
  }
  if (error == cudaSuccess) error = context.matmul->Run(context, library);
  if (error != cudaSuccess || args.bias == nullptr) return error;
  return AddBias(context.stream, args.bias, args.m, weight.rows(), args.y);
}

cudaError_t Embed(const Context& context, const EmbedArgs& args) {
  if (args.m == 0) return cudaSuccess;
  const auto& table = static_cast<const CudaWeight&>(*args.table);
  for (const TiledRows& rows : table.tiled()) {
    const cudaError_t error = EmbedTiles(context.stream, rows, args);
    if (error != cudaSuccess) return error;
  }
  if (table.InTiles()) return cudaSuccess;
  return LaunchOverlapped(EmbedKernel, dim3(args.m), dim3(kThreads), 0, context.stream, args.ids,
                          table.data(), table.dtype() == DType::kBF16, table.cols(), args.out,
                          args.accumulate, args.scale);
}

}  // namespace hydrant::cuda
