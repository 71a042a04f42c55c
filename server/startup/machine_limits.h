// The share of the machine that this process may use: CPUs, cores, NUMA nodes and memory,
// after cgroups (v1 and v2) and CPU affinity. Read once at start; values that cannot be read
// do not limit.
#ifndef HYDRANT_SERVER_STARTUP_MACHINE_LIMITS_H_
#define HYDRANT_SERVER_STARTUP_MACHINE_LIMITS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hydrant {

struct MachineLimits {
  double cpus = 1.0;  // CPU time per time, may be a fraction
  int cores = 1;      // cores of the CPUs in `affinity`: hyper-threads of one core count once
  std::vector<int> numa_nodes;  // nodes of these CPUs; empty: unknown
  int64_t memory_bytes = 0;  // minimum of the machine's memory and the cgroups' limits; 0: unknown
  int64_t available_bytes = 0;  // the part not in use now; 0: unknown
  std::string cpu_source;       // "cgroup v2", "cgroup v1", "affinity"
  std::string memory_source;    // "cgroup v2", "cgroup v1", "machine"
};

// `root` is prepended to /proc and /sys; "" on a real machine, a folder of fake files in tests.
// `affinity`: the numbers of the CPUs on which the process may run.
MachineLimits ReadMachineLimits(const std::string& root, const std::vector<int>& affinity);
std::vector<int> AffinityCpus();

// Defaults as shares of the limits. Threads: one per core, at most the whole CPUs, at least one;
// one thread keeps a core's vector units busy, and its other hyper-thread serves connections. Pool:
// a quarter of the available memory; prefix cache and contexts: an eighth each; the rest is for
// weights, the prefill arena and buffers.
int DefaultThreads(const MachineLimits& limits);
int64_t DefaultKvCacheBytes(const MachineLimits& limits);
int64_t DefaultReuseBytes(const MachineLimits& limits);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MACHINE_LIMITS_H_
