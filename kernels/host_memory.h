// Memory of the host backends: zeroed, aligned to 64 bytes or more; large areas ask for
// huge pages. Thread-safe.
#ifndef HYDRANT_KERNELS_HOST_MEMORY_H_
#define HYDRANT_KERNELS_HOST_MEMORY_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace hydrant {

DeviceMemory HostMemory();

// ResourceExhausted, with the number of bytes, where the machine cannot map them. Large areas are
// mapped, not touched: the system allocates physical pages at first use.
absl::StatusOr<DeviceBuffer> AllocateHostMemory(size_t bytes);

// Memory mapped from an unlinked file in the folder, with its disk space reserved at once: the
// system may page unused parts out to it. An error names the folder.
absl::StatusOr<DeviceBuffer> AllocateFileMemory(size_t bytes, const std::string& directory);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_HOST_MEMORY_H_
