// What the emulated device did: launches, copies and, in the traced build of this library, bytes
// that blocks read. Tests find the counts by dlsym in the shared object (HYDRANT_CUDA_MODULE). One
// thread drives a device at a time.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_COUNTS_H_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_COUNTS_H_

#include <cstdint>

namespace hydrant::emulation {

struct Counts {
  uint64_t kernels = 0;   // launches, those of replayed graphs included
  uint64_t products = 0;  // of the library's, cuBLASLt on a device
  uint64_t copies = 0;    // copies and fills of memory, to, from and on the device
  uint64_t copied_bytes = 0;
  // Of device memory, sectors of 32 bytes that a block reads, each once a block: the traffic of a
  // device whose multiprocessors keep all that they have read, and whose L2 keeps nothing. Products
  // count their operands once.
  uint64_t read_bytes = 0;
  bool can_trace = false;  // whether this is the traced build
  bool trace = false;      // set by a test: count read_bytes of kernels, which is slow
};

Counts& TheCounts();

}  // namespace hydrant::emulation

// The one name of TheCounts() that the shared object exports.
extern "C" hydrant::emulation::Counts* HydrantEmulationCounts();

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_COUNTS_H_
