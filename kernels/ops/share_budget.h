// Distributes a budget of entries over the heads of a layer, or of all layers, by the number of
// best entries in each head (Ada-KV, arXiv 2407.11550, algorithm 1 and its safeguard; the uniform
// part is 20 % as in its experiments, not its text).
//
//   share_h = (floor_ppm * base + (10^6 - floor_ppm) * best_h) / 10^6
//
// rounded by largest remainder, on equal remainders to the lower head, so that the shares sum to
// heads * base exactly. Integer arithmetic only: every backend gives the same result.
//
// While later layers are not computed yet, best_h counts the best entries of the computed layers.
// It can only decrease when layers are added, so
//
//   share_h = max(best_h, ceil of the formula)
//
// is an upper bound of the head's final share, and keeps every entry that may count then.
#ifndef HYDRANT_KERNELS_OPS_SHARE_BUDGET_H_
#define HYDRANT_KERNELS_OPS_SHARE_BUDGET_H_

#include <cstdint>

namespace hydrant {

inline constexpr int32_t kPartsPerMillion = 1000000;

struct ShareBudgetArgs {
  // [heads] a head's unprotected entries among the best heads * base of all heads, plus `counted`
  // protected ones; they sum to heads * (base + counted).
  const int32_t* best = nullptr;
  int32_t counted = 0;
  int heads = 0;
  int32_t base = 0;            // unprotected entries a head keeps on average
  int32_t floor_ppm = 0;       // [0, 10^6] the uniform part
  int32_t guarded = 0;         // protected entries of each head, added to its share
  bool others_follow = false;  // use the second formula: best may have any sum
  int32_t* keep = nullptr;     // [heads] share_h + guarded; may be best
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SHARE_BUDGET_H_
