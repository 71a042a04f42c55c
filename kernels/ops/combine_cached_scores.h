// The weighted sum of two scores of each entry already in its page, for weights that are known
// only after the prompt's last layer: the first score is in the entries' scores, the second beside
// it (SecondScore of kernels/entry_state.h).
#ifndef HYDRANT_KERNELS_OPS_COMBINE_CACHED_SCORES_H_
#define HYDRANT_KERNELS_OPS_COMBINE_CACHED_SCORES_H_

#include "kernels/kv_pages.h"

namespace hydrant {

// For every entry of every head of a slot,
//
//   score = weight_score * score + weight_second * second score
//
// in fp32 without contraction: bit-equal to DeriveScores' kCombine. REQUIRES:
// the slot is not weighted.
struct CombineCachedScoresArgs {
  int slot = 0;
  float weight_score = 1.0f;
  float weight_second = 1.0f;
  KvPages pages;
  SequenceTables tables;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_COMBINE_CACHED_SCORES_H_
