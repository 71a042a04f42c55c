// Common base of the host backends: a device pointer is a host pointer, and an operation is
// complete when it returns. The operations default to kernels/reference; a backend overrides those
// that it implements itself.
#ifndef HYDRANT_KERNELS_HOST_BACKEND_H_
#define HYDRANT_KERNELS_HOST_BACKEND_H_

#include <cstring>

#include "kernels/backend.h"
#include "kernels/host_memory.h"
#include "kernels/reference/ops.h"

namespace hydrant {

class HostBackend : public Backend {
 public:
  absl::StatusOr<DeviceMemory> Memory() override { return HostMemory(); }
  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  void CopyOnDevice(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Zero(void* device, size_t bytes) override {
    if (bytes > 0) std::memset(device, 0, bytes);
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  // Matmul and Embed read their weights in packed form: a backend that overrides
  // PackWeight overrides both too.
  absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                     WeightDType dtype) override {
    return reference::PackWeight(parts, dtype);
  }

#define HYDRANT_RUN_REFERENCE(Op, Args) \
  void Op(const Args& args) override { reference::Op(args); }
  HYDRANT_FOR_EACH_OP(HYDRANT_RUN_REFERENCE)
#undef HYDRANT_RUN_REFERENCE

 protected:
  absl::StatusOr<DeviceBuffer> TakeMemory(size_t bytes) override {
    return AllocateHostMemory(bytes);
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_HOST_BACKEND_H_
