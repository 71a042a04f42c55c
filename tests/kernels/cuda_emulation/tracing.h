// Counts what blocks read. In the traced build the compiler calls a function at every access
// (tracing.cc); in the other nothing is counted.
#ifndef HYDRANT_TESTS_KERNELS_CUDA_EMULATION_TRACING_H_
#define HYDRANT_TESTS_KERNELS_CUDA_EMULATION_TRACING_H_

namespace hydrant::emulation {

void BeginBlock();  // the accesses from here on are a block's
void EndBlock();

bool IsDeviceMemory(const void* at);  // of the runtime

}  // namespace hydrant::emulation

#endif  // HYDRANT_TESTS_KERNELS_CUDA_EMULATION_TRACING_H_
