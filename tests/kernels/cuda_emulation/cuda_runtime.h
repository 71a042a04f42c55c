// A CUDA runtime on the host: the part of CUDA's language and library that kernels/cuda uses, in
// plain C++, so that the kernel sources run (slowly) without a GPU. There is one stream, and it
// runs enqueued work later, at the latest when the host waits. A block's threads are fibers
// (fibers.h); blocks run one after another in random order; device memory is heap memory, so that
// sanitizers detect accesses out of bounds. Not emulated: speed, most of the memory model between
// blocks (tracing.h has a part), and the rounding of hardware instructions.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "tests/kernels/cuda_emulation/fibers.h"
#include "tests/kernels/cuda_emulation/tracing.h"

// Names and implicit conversions follow CUDA.
// NOLINTBEGIN(bugprone-reserved-identifier, google-explicit-constructor)
// NOLINTBEGIN(google-global-names-in-headers, readability-identifier-naming)

// ---- The language ------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static  // blocks run one after another
#define __grid_constant__

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
// One thread drives a device at a time.
#pragma GCC visibility push(hidden)
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
#pragma GCC visibility pop

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using std::max;
using std::min;

inline void __syncthreads() { hydrant::emulation::BlockBarrier(); }
inline void __syncwarp(unsigned = 0xFFFFFFFFu) { hydrant::emulation::WarpBarrier(); }
inline void __threadfence() { hydrant::emulation::NoteFence(); }
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() { std::abort(); }
inline int __syncthreads_or(int predicate) {
  static int any;
  hydrant::emulation::BlockBarrier();
  any = 0;
  hydrant::emulation::BlockBarrier();
  any |= predicate;
  hydrant::emulation::BlockBarrier();
  return any != 0;
}

namespace hydrant::emulation {

template <typename T>
T ReadLane(T value, int lane) {
  return Exchange(value)[lane];
}

}  // namespace hydrant::emulation

template <typename T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  const int base = hydrant::emulation::CurrentLane() / width * width;
  return hydrant::emulation::ReadLane(value, base + (lane & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return hydrant::emulation::ReadLane(value, hydrant::emulation::CurrentLane() ^ mask);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int delta, int width = 32) {
  const int lane = hydrant::emulation::CurrentLane();
  return hydrant::emulation::ReadLane(value, lane % width + delta < width ? lane + delta : lane);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int delta, int width = 32) {
  const int lane = hydrant::emulation::CurrentLane();
  return hydrant::emulation::ReadLane(value, lane % width >= delta ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const bool* given = hydrant::emulation::Exchange(predicate != 0);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (given[lane]) ballot |= 1u << lane;
  ballot &= mask & hydrant::emulation::LiveLanes();
  hydrant::emulation::WarpBarrier();  // no lane ends before all have read the live lanes
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  const hydrant::emulation::AtomicAccess atomic;
  const T old = *at;
  *at = static_cast<T>(old + value);
  return old;
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  const hydrant::emulation::AtomicAccess atomic;
  const T old = *at;
  *at = std::max(old, value);
  return old;
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  const hydrant::emulation::AtomicAccess atomic;
  const T old = *at;
  *at = std::min(old, value);
  return old;
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  const hydrant::emulation::AtomicAccess atomic;
  const T old = *at;
  *at = value;
  return old;
}
template <typename T>
T atomicInc(T* at, std::type_identity_t<T> most) {
  const hydrant::emulation::AtomicAccess atomic;
  const T old = *at;
  *at = old >= most ? 0 : old + 1;
  return old;
}

template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
// Byte i of the result is the byte of y:x selected by the i-th hexadecimal digit of the selector.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = x | uint64_t{y} << 32;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  return result;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline float __fmul_rn(float a, float b) { return a * b; }  // -ffp-contract=off
inline float __fadd_rn(float a, float b) { return a + b; }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// ---- The runtime library -----------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemNotReady = 802,
  cudaErrorSystemDriverMismatch = 803,
  cudaErrorCompatNotSupportedOnDevice = 804,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = struct EmulatedStream*;
struct cudaDeviceProp {
  char name[256];
};
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream);
inline constexpr unsigned cudaStreamNonBlocking = 1;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
using cudaEvent_t = struct EmulatedEvent*;
inline constexpr unsigned cudaEventDisableTiming = 2;
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaGetLastError();

using cudaGraph_t = struct EmulatedGraph*;
using cudaGraphExec_t = struct EmulatedGraph*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

struct cudaFuncAttributes {};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)());
template <typename Function>
cudaError_t cudaFuncSetAttribute(Function*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

namespace hydrant::emulation {

// cudaErrorInvalidValue for launch shapes that the device would refuse.
cudaError_t CheckGrid(dim3 grid, dim3 block, size_t shared_bytes);
// Runs body in every thread of every block.
cudaError_t RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

// An overlapped kernel fails unless each of its threads waits for the previous kernel. Kernels
// still run one after another.
cudaError_t RunOverlappedGrid(dim3 grid, dim3 block, size_t shared_bytes,
                              const std::function<void()>& body);
void NoteWait();  // the running thread waits for its kernel's predecessors

// Runs the operation now or later, or records it while the stream is captured. The operation must
// own its host data.
cudaError_t Enqueue(std::function<cudaError_t()> operation);

}  // namespace hydrant::emulation

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const cudaError_t error =
      hydrant::emulation::CheckGrid(config->gridDim, config->blockDim, config->dynamicSmemBytes);
  if (error != cudaSuccess) return error;
  const auto run =
      config->numAttrs > 0 ? hydrant::emulation::RunOverlappedGrid : hydrant::emulation::RunGrid;
  // Arguments are copied at launch.
  return hydrant::emulation::Enqueue(
      [grid = config->gridDim, block = config->blockDim, shared = config->dynamicSmemBytes, kernel,
       run,
       taken = std::tuple<std::decay_t<Parameters>...>(static_cast<Parameters>(arguments)...)] {
        return run(grid, block, shared, [&] { std::apply(kernel, taken); });
      });
}

// NOLINTEND(google-global-names-in-headers, readability-identifier-naming)
// NOLINTEND(bugprone-reserved-identifier, google-explicit-constructor)

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
