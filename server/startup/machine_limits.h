// How much of the machine this process may use: CPUs, cores, NUMA nodes and memory, after cgroups
// (v1 and v2) and CPU affinity. Read once at start; what cannot be read does not limit.
#ifndef HYDRANT_SERVER_STARTUP_MACHINE_LIMITS_H_
#define HYDRANT_SERVER_STARTUP_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hydrant {

struct MachineLimits {
  double cpus = 1.0;  // CPU time per time, at least a fraction of one
  int cores = 1;      // of the CPUs that affinity allows: hyper-threads of one core count once
  std::vector<int> numa_nodes;  // that have such CPUs; empty: unknown
  int64_t memory_bytes =
      0;  // the least of the machine's memory and the cgroups' limits; 0: unknown
  int64_t available_bytes = 0;  // of it, not in use by others now; 0: unknown
  std::string cpu_source;       // "cgroup v2", "cgroup v1", "affinity"
  std::string memory_source;    // "cgroup v2", "cgroup v1", "machine"
};

// `root` stands in front of /proc and /sys; "" on a real machine, a folder of fake files in tests.
// `affinity` are the CPUs that the kernel may put the process on, by number.
MachineLimits ReadMachineLimits(const std::string& root, const std::vector<int>& affinity);
std::vector<int> AffinityCpus();

// The daemon's defaults, as shares of what is allowed. Threads: one a core, no more than whole
// CPUs, at least one: a core's vector units are busy with one thread, and its other hyper-thread is
// left to the connections. Pool: a quarter of the memory that is available, prefix cache and
// contexts: an eighth each, which leaves room for weights, the prefill arena and buffers.
int DefaultThreads(const MachineLimits& limits);
int64_t DefaultKvCacheBytes(const MachineLimits& limits);
int64_t DefaultReuseBytes(const MachineLimits& limits);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MACHINE_LIMITS_H_
