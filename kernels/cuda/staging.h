// Copies host memory to the device through a ring of pinned memory, so that the copy is
// asynchronous and the caller's memory is free on return. Waits for the device when the ring is
// full of pending copies. Not thread-safe.
#ifndef HYDRANT_KERNELS_CUDA_STAGING_H_
#define HYDRANT_KERNELS_CUDA_STAGING_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace hydrant::cuda {

class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    for (const Segment& segment : segments_) {
      if (segment.left != nullptr) cudaEventDestroy(segment.left);
    }
    cudaFreeHost(memory_);
  }

  cudaError_t Open() {
    void* memory = nullptr;
    cudaError_t error = cudaMallocHost(&memory, kSegments * kSegmentBytes);
    memory_ = static_cast<char*>(memory);
    for (Segment& segment : segments_) {
      if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&segment.left, cudaEventDisableTiming);
    }
    return error;
  }

  cudaError_t CopyToDevice(void* device, const void* host, size_t bytes, cudaStream_t stream) {
    auto* to = static_cast<char*>(device);
    const auto* from = static_cast<const char*>(host);
    while (bytes > 0) {
      // Large copies are split; a small one that does not fit begins a new segment.
      const size_t piece = std::min(bytes, kSegmentBytes);
      if (piece > kSegmentBytes - used_) {
        if (const cudaError_t error = NextSegment(stream); error != cudaSuccess) return error;
      }
      char* staged = memory_ + current_ * kSegmentBytes + used_;
      std::memcpy(staged, from, piece);
      const cudaError_t error = cudaMemcpyAsync(to, staged, piece, cudaMemcpyHostToDevice, stream);
      if (error != cudaSuccess) return error;
      used_ = std::min(kSegmentBytes, (used_ + piece + kAlignment - 1) / kAlignment * kAlignment);
      to += piece;
      from += piece;
      bytes -= piece;
    }
    return cudaSuccess;
  }

 private:
  static constexpr size_t kSegments = 4;
  static constexpr size_t kSegmentBytes = size_t{2} << 20;
  static constexpr size_t kAlignment = 64;

  struct Segment {
    cudaEvent_t left = nullptr;  // after the last copy out of the segment
    bool in_use = false;
  };

  cudaError_t NextSegment(cudaStream_t stream) {
    Segment& last = segments_[current_];
    if (const cudaError_t error = cudaEventRecord(last.left, stream); error != cudaSuccess)
      return error;
    last.in_use = true;
    current_ = (current_ + 1) % kSegments;
    used_ = 0;
    Segment& next = segments_[current_];
    return next.in_use ? cudaEventSynchronize(next.left) : cudaSuccess;
  }

  char* memory_ = nullptr;
  std::array<Segment, kSegments> segments_;
  size_t current_ = 0;
  size_t used_ = 0;  // bytes of the current segment
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_STAGING_H_
