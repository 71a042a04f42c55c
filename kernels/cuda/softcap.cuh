// Softcapped logits (kernels/ops/prefill_attention.h, decode_attention.h).
#ifndef HYDRANT_KERNELS_CUDA_SOFTCAP_CUH_
#define HYDRANT_KERNELS_CUDA_SOFTCAP_CUH_

#include <cuda_runtime.h>

#include <cmath>

namespace hydrant::cuda {

// `cap` in the unit of the logit: for base-2 logits, times log2(e).
__device__ inline float SoftCap(float logit, float cap) { return cap * tanhf(logit / cap); }

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_SOFTCAP_CUH_
