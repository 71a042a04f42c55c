// Replaces kernels/cuda/sm90/ if the open kernel's source was not fetched or the
// device is emulated.
#include "kernels/cuda/sm90_attention.h"

namespace hydrant::cuda {

bool HasSm90Attention() { return false; }
cudaError_t Sm90Attention(const Context&, const PrefillAttentionArgs&, const Sm90Results&) {
  return cudaErrorInvalidValue;
}
Sm90Verdict CheckSm90Attention(const Context&) { return {"it was not built", false}; }

}  // namespace hydrant::cuda
