// Sharing a budget of entries out over the heads of a layer, or of all layers, by where the best of
// their entries are (Ada-KV, arXiv 2407.11550, algorithm 1 and its safeguard; as its experiments
// have it, which give the uniform part 20 %, not its text).
//
//   share_h = (floor_ppm * base + (10^6 - floor_ppm) * best_h) / 10^6
//
// rounded by largest remainder, on equal remainders to the lower head, so that the shares sum to
// heads * base exactly. Whole numbers throughout: every backend gives the same.
//
// While layers are still to come, best_h counts the best entries of those that are there. It can
// only fall when others join them, so
//
//   share_h = max(best_h, ceil of the formula)
//
// is as much as a head can be given in the end, and holds every entry that may count then.
#ifndef HYDRANT_KERNELS_OPS_SHARE_BUDGET_H_
#define HYDRANT_KERNELS_OPS_SHARE_BUDGET_H_

#include <cstdint>

namespace hydrant {

inline constexpr int32_t kPartsPerMillion = 1000000;

struct ShareBudgetArgs {
  // [heads] how many unprotected entries a head has among the best heads * base of all heads, and
  // `counted` protected ones on top; they sum to heads * (base + counted).
  const int32_t* best = nullptr;
  int32_t counted = 0;
  int heads = 0;
  int32_t base = 0;            // unprotected entries a head keeps on average
  int32_t floor_ppm = 0;       // [0, 10^6] the part that every head gets alike
  int32_t guarded = 0;         // protected entries of each head, on top
  bool others_follow = false;  // the second formula: best need not sum to anything
  int32_t* keep = nullptr;     // [heads] share_h + guarded; may be best
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SHARE_BUDGET_H_
