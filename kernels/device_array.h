// A typed array in device memory, owned.
#ifndef HYDRANT_KERNELS_DEVICE_ARRAY_H_
#define HYDRANT_KERNELS_DEVICE_ARRAY_H_

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/status_macros.h"

namespace hydrant {

template <typename T>
class DeviceArray {
 public:
  // Zeroed. Replaces the previous array.
  absl::Status Allocate(Backend& backend, size_t count) {
    HYDRANT_ASSIGN_OR_RETURN(buffer_, backend.Allocate(count * sizeof(T)));
    count_ = count;
    return absl::OkStatus();
  }

  absl::Status AllocateFrom(Backend& backend, std::span<const T> host) {
    HYDRANT_RETURN_IF_ERROR(Allocate(backend, host.size()));
    backend.CopyToDevice(data(), host.data(), host.size_bytes());
    return absl::OkStatus();
  }

  T* data() const { return static_cast<T*>(buffer_.get()); }
  size_t size() const { return count_; }

  // REQUIRES: offset + host.size() <= size()
  void Write(Backend& backend, size_t offset, std::span<const T> host) const {
    if (!host.empty()) backend.CopyToDevice(data() + offset, host.data(), host.size_bytes());
  }
  void Read(Backend& backend, size_t offset, std::span<T> host) const {
    if (!host.empty()) backend.CopyToHost(host.data(), data() + offset, host.size_bytes());
  }

 private:
  DeviceBuffer buffer_;
  size_t count_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_DEVICE_ARRAY_H_
