// Where the memory of a machine with several NUMA nodes lies.
#ifndef HYDRANT_SERVER_STARTUP_NUMA_H_
#define HYDRANT_SERVER_STARTUP_NUMA_H_

#include <vector>

#include "absl/status/status.h"

namespace hydrant {

// Memory that this thread and those it starts from now on touch first is spread over these nodes,
// page by page: all cores read weights and pages at the speed of all nodes together. What somebody
// has chosen before (numactl) stays. Errors: FailedPrecondition where the kernel does not allow it
// (containers often do not).
absl::Status InterleaveMemory(const std::vector<int>& nodes);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_NUMA_H_
