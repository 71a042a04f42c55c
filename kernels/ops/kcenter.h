// Greedy k-center (Gonzalez 1985; SubGen, arXiv 2402.06082, section 3.2): centres far from each
// other cover the keys. The first centre is key 0, each next one the key farthest from its nearest
// centre; on equal distances the lower position.
//
//   scores[h, j] = n - i if key j is the i-th centre (from 0), else 0
//
// so that Select() keeps the first centres. A squared distance is a sum in fp32 (in
// the reference in double, then rounded), in an order that follows from head_dim
// alone; NaN distances are ignored.
#ifndef HYDRANT_KERNELS_OPS_KCENTER_H_
#define HYDRANT_KERNELS_OPS_KCENTER_H_

#include <cstdint>

#include "kernels/arena_rows.h"

namespace hydrant {

struct KCenterArgs {
  ArenaRows k = nullptr;       // key j of head h at k + h * kv_head_stride + j * head_dim
  int64_t kv_head_stride = 0;  // elements
  int num_kv_heads = 0;
  int head_dim = 0;
  int n = 0;                 // keys
  int centres = 0;           // [1, n]
  float* scores = nullptr;   // [num_kv_heads, score_stride]
  int64_t score_stride = 0;  // elements
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_KCENTER_H_
