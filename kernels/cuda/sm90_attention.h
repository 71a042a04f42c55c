// Prompt attention by wgmma and TMA on compute capability 9.0: the open kernel of NVIDIA's
// cudnn-frontend (cmake/Sm90Attention.cmake cuts it out and says which lines change).
//
// Persistent blocks of 384 threads take tiles of 128 queries of one head from a counter, the
// longest first, and go over tiles of 128 keys from the first on. What a query gets does not depend
// on the queries beside it, so that slices of a prompt give the same bits, but not those of the
// kernel that takes the other runs.
#ifndef HYDRANT_KERNELS_CUDA_SM90_ATTENTION_H_
#define HYDRANT_KERNELS_CUDA_SM90_ATTENTION_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/sm90_plan.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

struct Context;

// Where the kernel leaves each query's largest logit and the sum of its exponentials relative to
// it, natural: [num_heads, num_queries] each; null: not wanted. Its next tile is counted in
// `counter`.
struct Sm90Results {
  float* maxima = nullptr;
  float* sums = nullptr;
  int32_t* counter = nullptr;
};

// Without the kernel's source these say that it is not there.
bool HasSm90Attention();
cudaError_t Sm90Attention(const Context& context, const PrefillAttentionArgs& args,
                          const Sm90Results& results);

// Attends to small prompts by both kernels on this device and compares. Empty: they agree within
// what rounding explains. `fatal`: the device is lost, as a kernel failed or did not end.
struct Sm90Verdict {
  std::string why_not;
  bool fatal = false;
};
Sm90Verdict CheckSm90Attention(const Context& context);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SM90_ATTENTION_H_
