// Memory of the host backends: zeroed, aligned to 64 bytes or more; large areas ask for huge pages.
// Thread-safe.
#ifndef HYDRANT_KERNELS_HOST_MEMORY_H_
#define HYDRANT_KERNELS_HOST_MEMORY_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace hydrant {

DeviceMemory HostMemory();

// ResourceExhausted, with the number of bytes, where the machine cannot map them. Large areas are
// mapped, not touched: pages are taken from the system at first use.
absl::StatusOr<DeviceBuffer> AllocateHostMemory(size_t bytes);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_HOST_MEMORY_H_
