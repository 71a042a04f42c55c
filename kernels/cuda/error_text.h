// Text for CUDA errors: the runtime's own, plus the next step if there is one. Thread-safe.
#ifndef HYDRANT_KERNELS_CUDA_ERROR_TEXT_H_
#define HYDRANT_KERNELS_CUDA_ERROR_TEXT_H_

#include <cuda_runtime.h>

#include <string>

namespace hydrant::cuda {

// A clause that says what to do, or an empty string.
inline const char* NextStep(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "CUDA 13 needs an NVIDIA driver of version 580 or later on the host";
    case cudaErrorNoDevice:
      return "nvidia-smi lists the GPUs; a container is given one by --gpus all or the limit "
             "nvidia.com/gpu";
    case cudaErrorMemoryAllocation:
      return "nvidia-smi lists the processes that hold the GPU's memory";
    case cudaErrorDevicesUnavailable:
      return "nvidia-smi lists the processes that hold the GPU, and its compute mode";
    case cudaErrorSystemNotReady:
      return "the services of the driver, such as nvidia-fabricmanager, are to be started first";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "the CUDA backend was compiled for other GPUs: build it with this compute capability "
             "in HYDRANT_CUDA_ARCHITECTURES";
    case cudaErrorLaunchFailure:
    case cudaErrorIllegalAddress:
    case cudaErrorECCUncorrectable:
      return "the host's kernel log has the driver's report (Xid)";
    default:
      return "";
  }
}

// "out of memory; nvidia-smi lists the processes that hold the GPU's memory"
inline std::string ErrorWithNextStep(cudaError_t error) {
  const std::string text = cudaGetErrorString(error), next = NextStep(error);
  return next.empty() ? text : text + "; " + next;
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_ERROR_TEXT_H_
