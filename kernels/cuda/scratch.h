// Device scratch memory that grows to the largest request. Growing synchronizes with the device; a
// steady state never grows. Not thread-safe.
#ifndef HYDRANT_KERNELS_CUDA_SCRATCH_H_
#define HYDRANT_KERNELS_CUDA_SCRATCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hydrant::cuda {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { cudaFree(data_); }

  // At least `bytes`, aligned to 256; uninitialised. Invalidates the previous result.
  cudaError_t Get(size_t bytes, void** data) {
    if (bytes > size_) {
      const size_t size = std::max(bytes, size_ + size_ / 2);
      cudaFree(data_);  // waits for the kernels that use it
      data_ = nullptr;
      size_ = 0;
      if (const cudaError_t error = cudaMalloc(&data_, size); error != cudaSuccess) return error;
      size_ = size;
      ++growths_;
    }
    *data = data_;
    return cudaSuccess;
  }

  size_t size() const { return size_; }
  uint64_t growths() const { return growths_; }  // how often the address has changed

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  uint64_t growths_ = 0;
};

// Counters that are zero whenever no kernel is running: each user resets its own. Not thread-safe.
class Counters {
 public:
  cudaError_t Get(size_t count, cudaStream_t stream, unsigned** counters) {
    void* data = nullptr;
    const uint64_t growths = memory_.growths();
    cudaError_t error = memory_.Get(std::max(count, kLeast) * sizeof(unsigned), &data);
    if (error == cudaSuccess && memory_.growths() != growths)
      error = cudaMemsetAsync(data, 0, memory_.size(), stream);
    *counters = static_cast<unsigned*>(data);
    return error;
  }
  uint64_t growths() const { return memory_.growths(); }

 private:
  static constexpr size_t kLeast = 4096;
  Scratch memory_;
};

// Divides one scratch buffer into arrays: first Add() each, then Get() the sum, then At() each.
class ScratchLayout {
 public:
  // Returns the offset of `count` elements of T.
  template <typename T>
  size_t Add(size_t count) {
    const size_t offset = bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

template <typename T>
T* At(void* scratch, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(scratch) + offset);
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SCRATCH_H_
