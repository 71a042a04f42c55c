// Prefill attention with wgmma and TMA on compute capability 9.0: the open kernel of NVIDIA's
// cudnn-frontend (extracted and patched by cmake/Sm90Attention.cmake).
//
// Persistent blocks of 384 threads take tiles of 128 queries of one head from a counter, the
// longest first, and iterate over all tiles of 128 keys in order. A query's result does not depend
// on the queries beside it, so slices of a prompt give the same bits, though not those of the
// kernel for other runs.
#ifndef HYDRANT_KERNELS_CUDA_SM90_ATTENTION_H_
#define HYDRANT_KERNELS_CUDA_SM90_ATTENTION_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/sm90_plan.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant::cuda {

struct Context;

// Optional outputs: each query's largest logit and the sum of its exponentials relative to it, base
// e: [num_heads, num_queries] each; null: not requested. `counter` is the tile counter.
struct Sm90Results {
  float* maxima = nullptr;
  float* sums = nullptr;
  int32_t* counter = nullptr;
};

// Without the kernel's source, HasSm90Attention() is false.
bool HasSm90Attention();
cudaError_t Sm90Attention(const Context& context, const PrefillAttentionArgs& args,
                          const Sm90Results& results);

// Runs small prompts through both kernels on this device and compares. Empty why_not: they agree
// within rounding. `fatal`: the device is lost, because a kernel failed or did not finish.
struct Sm90Verdict {
  std::string why_not;
  bool fatal = false;
};
Sm90Verdict CheckSm90Attention(const Context& context);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SM90_ATTENTION_H_
