#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "tests/kernels/device_ceilings.h"

namespace hydrant {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int kPieceVectors = 4;  // of 16 bytes: 64

// Reads all data; the sum is stored only for a value that never occurs, so that the
// compiler keeps the loads.
__global__ void ReadKernel(const uint4* from, int64_t count, bool gathers, unsigned* sink) {
  const auto threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t pieces = count / kPieceVectors;
  unsigned sum = 0;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += threads) {
    int64_t at = i;
    if (gathers) {
      const auto drawn = static_cast<uint64_t>(i / kPieceVectors) * 0x9e3779b97f4a7c15u;
      at = static_cast<int64_t>((drawn >> 20) % pieces) * kPieceVectors + i % kPieceVectors;
    }
    const uint4 value = from[at];
    sum |= value.x | value.y | value.z | value.w;
  }
  if (sum == 0xFFFFFFFFu) *sink = sum;
}

__global__ void EmptyKernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

class Ceilings {
 public:
  Ceilings() {
    Do(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    Do(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, 0));
  }
  Ceilings(const Ceilings&) = delete;
  Ceilings& operator=(const Ceilings&) = delete;
  ~Ceilings() {
    cudaFree(from_);
    cudaFree(to_);
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  cudaError_t Measure(Ceiling ceiling, size_t size, int calls, double* seconds) {
    const bool launches = ceiling == Ceiling::kLaunches || ceiling == Ceiling::kDependentLaunches;
    if (launches) {
      Capture(static_cast<int>(size), ceiling == Ceiling::kDependentLaunches);
    } else {
      Do(cudaMalloc(&from_, size));
      Do(cudaMalloc(&to_, ceiling == Ceiling::kCopy ? size : sizeof(unsigned)));
      Do(cudaMemsetAsync(from_, 1, size, stream_));
    }
    Call(ceiling, size);
    Do(cudaStreamSynchronize(stream_));
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) Call(ceiling, size);
    Do(cudaStreamSynchronize(stream_));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    *seconds = taken.count() / calls;
    return error_;
  }

 private:
  void Do(cudaError_t error) {
    if (error_ == cudaSuccess) error_ = error;
  }

  void Call(Ceiling ceiling, size_t size) {
    if (error_ != cudaSuccess) return;
    switch (ceiling) {
      case Ceiling::kCopy:
        return Do(cudaMemcpyAsync(to_, from_, size, cudaMemcpyDeviceToDevice, stream_));
      case Ceiling::kRead:
      case Ceiling::kGather:
        return Do(cuda::Launch(ReadKernel, dim3(num_sms_ * kBlocksPerSm), dim3(kThreads), 0,
                               stream_, static_cast<const uint4*>(from_),
                               static_cast<int64_t>(size / sizeof(uint4)),
                               ceiling == Ceiling::kGather, static_cast<unsigned*>(to_)));
      case Ceiling::kLaunches:
      case Ceiling::kDependentLaunches:
        return Do(cudaGraphLaunch(graph_, stream_));
    }
  }

  void Capture(int kernels, bool dependent) {
    Do(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < kernels && error_ == cudaSuccess; ++i) LaunchEmpty(dependent);
    cudaGraph_t graph = nullptr;
    Do(cudaStreamEndCapture(stream_, &graph));
    if (graph != nullptr) Do(cudaGraphInstantiate(&graph_, graph, 0));
    if (graph != nullptr) cudaGraphDestroy(graph);
  }

  void LaunchEmpty([[maybe_unused]] bool dependent) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(num_sms_);
    config.blockDim = dim3(kThreads);
    config.stream = stream_;
#if defined(__CUDACC__)
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = dependent ? 1 : 0;
#endif
    Do(cudaLaunchKernelEx(&config, EmptyKernel));
  }

  cudaError_t error_ = cudaSuccess;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  int num_sms_ = 1;
  void* from_ = nullptr;
  void* to_ = nullptr;
};

}  // namespace
}  // namespace hydrant

extern "C" int HydrantMeasureCeiling(hydrant::Ceiling ceiling, size_t size, int calls,
                                     double* seconds) {
  return hydrant::Ceilings().Measure(ceiling, size, calls, seconds);
}
