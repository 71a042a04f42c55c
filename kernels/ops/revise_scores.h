// What follows DecodeAttention for rows whose rule has a revision: scores become something else
// than a running sum of a head's own weights, and the victim is chosen by what they have become.
//
// For every KV head h of the row's (slot, layer), over its entries 0 .. length - 1 after the step:
//
//   kLayerMean  score(h, e) = the mean over the heads of score(., e), summed in double, head 0
//               first. With decay 0 and gain 1 that is the newest query's weights, averaged over
//               all heads (TOVA, arXiv 2401.06104): a layer has one kept set.
//               REQUIRES: all heads of the layer hold the same positions at the same entries. They
//               do, for they have been given the same scores and the same victims ever since.
//   kRandom     score = RandomScore(...): drawn anew at every step, so that the victim is uniform
//               among the unprotected, whatever was drawn before.
//   kBelowMean  score = -count; count = how many of the last rule.history steps before the head is
//               at its cap found the entry's weight below the mean of all, 1 / length
//               (Scissorhands, arXiv 2305.17118, algorithm 2, whose record is of the
//               last w queries before a drop). A step whose length is below cap - history + 1
//               counts nothing, and at that length counting begins again. The count of a step is the
//               entry's BelowMeanCount (kernels/entry_state.h) for the next one; decay is 0 and gain 1, so that
//               scores are weights when this operation comes.
//
// Where length == cap, victims[...] = the victim for position + 1 (kernels/kv_pages.h) by the new
// scores. Rows without a revision, and padding, are left alone. REQUIRES: rules with a revision are
// scored, not by_position, not rolling, not weighted.
#ifndef HYDRANT_KERNELS_OPS_REVISE_SCORES_H_
#define HYDRANT_KERNELS_OPS_REVISE_SCORES_H_

#include <cstdint>

#include "kernels/kv_pages.h"
#include "kernels/ops/derive_scores.h"
#include "kernels/ops/prefill_attention.h"
#include "kernels/random.h"

namespace hydrant {

struct ReviseScoresArgs {
  int num_rows = 0;
  const int32_t* slots = nullptr;      // [num_rows] below 0: padding
  const int32_t* positions = nullptr;  // [num_rows] position of the token that has just come
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

// Of kRandom: uniform in [0, 1).
constexpr float RandomScore(uint64_t seed, int layer, int head, int32_t next_position,
                            int32_t position) {
  const uint64_t key = ScoreSeed(seed, layer, head);
  return UnitFloat(RandomBits(SubBits(key, static_cast<uint32_t>(next_position)), position));
}

// Of kBelowMean. The margin is that of the statistic of a prompt.
constexpr bool IsBelowMean(float weight, int32_t length) {
  return weight * static_cast<float>(length) < 1.0f - kBelowMeanMargin;
}

// How many steps kBelowMean has counted when a head holds `length` entries, this one included;
// below 1: counting has not begun.
constexpr int32_t StepsCounted(const DecodeRule& rule, int32_t length, int32_t cap) {
  return length - (cap - rule.history);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_REVISE_SCORES_H_
