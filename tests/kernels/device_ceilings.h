// What a CUDA device can do at most, to judge kernels by: bytes a second of a copy, of reading
// alone and of reading in pieces, and the time from one kernel to the next in a graph. A shared
// object of its own, which device_probe loads: it needs nvcc.
#ifndef HYDRANT_TESTS_KERNELS_DEVICE_CEILINGS_H_
#define HYDRANT_TESTS_KERNELS_DEVICE_CEILINGS_H_

#include <cstddef>

namespace hydrant {

enum class Ceiling {
  kCopy,               // `size` bytes to another place
  kRead,               // `size` bytes in order, 16 a thread
  kGather,             // `size` bytes in pieces of 64, drawn
  kLaunches,           // a graph of `size` empty kernels, one after another
  kDependentLaunches,  // the same by programmatic dependent launch: each begins while the one
                       // before ends
};

// Seconds of one of `calls` calls, after one that is not counted. Returns a cudaError_t, 0 for
// success. Works on a stream of its own, and allocates what it needs for the time of the call.
using MeasureCeiling = int(Ceiling ceiling, size_t size, int calls, double* seconds);
inline constexpr const char* kMeasureCeiling = "HydrantMeasureCeiling";

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_DEVICE_CEILINGS_H_
