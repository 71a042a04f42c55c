// Launches kernels without the <<<>>> syntax, so that the sources are plain C++ for any compiler
// that declares the CUDA names.
#ifndef HYDRANT_KERNELS_CUDA_LAUNCH_CUH_
#define HYDRANT_KERNELS_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace hydrant::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

constexpr int CeilDiv(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Whether LaunchOverlapped() overlaps: the device supports it (compute capability 9.0) and
// HYDRANT_CUDA_TRIAL=overlap is set. Set once, when the device is opened.
inline bool overlap_kernels = false;

namespace launch {

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(bool overlapped, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  // More than this needs an attribute on the kernel; setting it each time is
  // cheap next to a launch.
  constexpr size_t kSharedWithoutLeave = 48 * 1024;
  if (shared_bytes > kSharedWithoutLeave) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  if (overlapped) {
    config.attrs = &overlap;
    config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace launch

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  return launch::Launch(false, kernel, grid, block, shared_bytes, stream,
                        std::forward<Arguments>(arguments)...);
}

// Programmatic dependent launch: blocks may start before the preceding kernel in the stream ends,
// which hides launch latency. REQUIRES: every thread of the kernel begins with
// WaitForPredecessor() (ptx.cuh).
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchOverlapped(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                             size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  return launch::Launch(overlap_kernels, kernel, grid, block, shared_bytes, stream,
                        std::forward<Arguments>(arguments)...);
}

template <typename T>
__device__ T WarpSum(T value) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2)
    value += __shfl_xor_sync(kAllLanes, value, mask);
  return value;
}

__device__ inline float WarpMax(float value) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, mask));
  return value;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_LAUNCH_CUH_
