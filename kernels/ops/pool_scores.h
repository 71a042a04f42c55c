// Smooths scores along the positions of a prompt, so that selection keeps neighbours together
// (SnapKV, arXiv 2404.14469, "clustering via pooling").
//
//   out[h, j] = max or mean of scores[h, i], |i - j| <= (kernel - 1) / 2, 0 <= i < n
//
// At the edges the window is cut to [0, n). The mean still divides by `kernel`, as in SnapKV's
// published code (PyTorch's avg_pool1d counts its zero padding). That code pools only the positions
// before the observation window; n is then their number. A mean is summed in double, in ascending
// order, so that every backend gives the same bits. A max ignores NaN (all NaN: -infinity).
#ifndef HYDRANT_KERNELS_OPS_POOL_SCORES_H_
#define HYDRANT_KERNELS_OPS_POOL_SCORES_H_

#include <cstdint>

namespace hydrant {

enum class Pooling : uint8_t { kMax, kMean };

struct PoolScoresArgs {
  const float* scores = nullptr;  // [num_kv_heads, score_stride]
  int64_t score_stride = 0;       // elements
  int num_kv_heads = 0;
  int n = 0;
  int kernel = 1;  // odd
  Pooling pooling = Pooling::kMax;
  float* out = nullptr;    // [num_kv_heads, out_stride], must not alias scores
  int64_t out_stride = 0;  // elements
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_POOL_SCORES_H_
