// Counters of the emulated device: launches, copies and, in the traced build, bytes read by
// blocks. Tests find them with dlsym in the shared object (HYDRANT_CUDA_MODULE). One thread drives
// a device at a time.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_COUNTS_H_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_COUNTS_H_

#include <cstdint>

namespace hydrant::emulation {

struct Counts {
  uint64_t kernels = 0;   // launches, including those of replayed graphs
  uint64_t products = 0;  // by the library (cuBLASLt on a device)
  uint64_t copies = 0;    // copies and fills, to, from and on the device
  uint64_t copied_bytes = 0;
  // Device memory read, in 32-byte sectors, each counted once per block: the traffic of a device
  // with unlimited L1 and no L2. Products count their operands once.
  uint64_t read_bytes = 0;
  bool can_trace = false;  // whether this is the traced build
  bool trace = false;      // set by a test: count read_bytes of kernels, which is slow
};

Counts& TheCounts();

}  // namespace hydrant::emulation

// Exported name of TheCounts().
extern "C" hydrant::emulation::Counts* HydrantEmulationCounts();

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_COUNTS_H_
