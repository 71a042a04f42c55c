// How much of the machine this process may use: CPUs and memory, after cgroups (v1 and v2) and CPU
// affinity. Read once at start; what cannot be read does not limit.
#ifndef HYDRANT_SERVER_MACHINE_LIMITS_H_
#define HYDRANT_SERVER_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>

namespace hydrant {

struct MachineLimits {
  double cpus = 1.0;  // CPU time per time, at least a fraction of one
  int64_t memory_bytes =
      0;  // the least of the machine's memory and the cgroups' limits; 0: unknown
  int64_t available_bytes = 0;  // of it, not in use by others now; 0: unknown
  std::string cpu_source;       // "cgroup v2", "cgroup v1", "affinity"
  std::string memory_source;    // "cgroup v2", "cgroup v1", "machine"
};

// `root` stands in front of /proc and /sys; "" on a real machine, a folder of fake files in tests.
// `affinity_cpus` is the number of CPUs the scheduler may put the process on.
MachineLimits ReadMachineLimits(const std::string& root, int affinity_cpus);
int AffinityCpus();

// The daemon's defaults, as shares of what is allowed. Threads: all whole CPUs, at least one. Pool:
// a quarter of the memory that is available, prefix cache and contexts: an eighth each, which
// leaves room for weights, the prefill arena and buffers.
int DefaultThreads(const MachineLimits& limits);
int64_t DefaultKvCacheBytes(const MachineLimits& limits);
int64_t DefaultReuseBytes(const MachineLimits& limits);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_MACHINE_LIMITS_H_
