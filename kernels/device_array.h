// A typed array in device memory, owned.
#ifndef HYDRANT_KERNELS_DEVICE_ARRAY_H_
#define HYDRANT_KERNELS_DEVICE_ARRAY_H_

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace hydrant {

template <typename T>
class DeviceArray {
 public:
  // Zeroed. Replaces what was held.
  absl::Status Allocate(Backend& backend, size_t count) {
    absl::StatusOr<DeviceBuffer> buffer = backend.Allocate(count * sizeof(T));
    if (!buffer.ok()) return buffer.status();
    buffer_ = *std::move(buffer);
    count_ = count;
    return absl::OkStatus();
  }

  absl::Status AllocateFrom(Backend& backend, std::span<const T> host) {
    if (absl::Status status = Allocate(backend, host.size()); !status.ok()) return status;
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
