// Limits of a CUDA device, to judge kernels by: bytes per second of a copy, of reading and of
// reading in pieces, and the time between kernels of a graph. A separate shared object, loaded by
// device_probe, because it needs nvcc.
#ifndef HYDRANT_TESTS_KERNELS_DEVICE_CEILINGS_H_
#define HYDRANT_TESTS_KERNELS_DEVICE_CEILINGS_H_

#include <cstddef>

namespace hydrant {

enum class Ceiling {
  kCopy,               // `size` bytes to another place
  kRead,               // `size` bytes in order, 16 per thread
  kGather,             // `size` bytes in random pieces of 64
  kLaunches,           // a graph of `size` empty kernels, one after another
  kDependentLaunches,  // the same by programmatic dependent launch: each begins before
                       // the previous one ends
};

// Seconds per call over `calls` calls, after one warm-up call. Returns a cudaError_t, 0 for
// success. Uses its own stream, and allocates memory for the duration of the call.
using MeasureCeiling = int(Ceiling ceiling, size_t size, int calls, double* seconds);
inline constexpr const char* kMeasureCeiling = "HydrantMeasureCeiling";

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_DEVICE_CEILINGS_H_
