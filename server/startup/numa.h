// Memory placement on machines with several NUMA nodes.
#ifndef HYDRANT_SERVER_STARTUP_NUMA_H_
#define HYDRANT_SERVER_STARTUP_NUMA_H_

#include <vector>

#include "absl/status/status.h"

namespace hydrant {

// Interleaves memory first touched by this thread, and by threads it starts later, over the nodes
// page by page, so that all cores read weights and pages at the nodes' combined bandwidth. A
// policy set before (numactl) is kept. FailedPrecondition where the kernel does not allow it, as
// in many containers.
absl::Status InterleaveMemory(const std::vector<int>& nodes);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_NUMA_H_
