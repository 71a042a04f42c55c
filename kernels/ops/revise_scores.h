// Runs after DecodeAttention for rows with a revision in their rule: replaces scores that are not a
// running sum of a head's own weights, and chooses the victim by the new scores.
//
// For every KV head h of the row's (slot, layer), over its entries 0 .. length - 1 after the step:
//
//   kLayerMean  score(h, e) = the mean over the heads of score(., e), summed in double, head 0
//               first. With decay 0 and gain 1 that is the newest query's weights, averaged over
//               all heads (TOVA, arXiv 2401.06104): a layer has one kept set.
//               REQUIRES: all heads of the layer hold the same positions at the same entries.
//               They do, because they have had equal scores and victims from the start.
//   kRandom     score = RandomScore(...): drawn anew at every step, so that the victim is uniform
//               among the unprotected entries, independent of earlier draws.
//   kBelowMean  score = -count; count = how many of the last rule.history steps before the head
//               reaches its cap found the entry's weight below the mean of all, 1 / length
//               (Scissorhands, arXiv 2305.17118, algorithm 2, which records the last w queries
//               before a drop). A step with length below cap - history + 1 does not count; at that
//               length counting restarts. The count is carried to the next step as the entry's
//               BelowMeanCount (kernels/entry_state.h); decay is 0 and gain 1, so that scores are
//               weights on entry.
//
// Where length == cap, victims[...] = the victim for position + 1 (kernels/kv_pages.h) by the new
// scores. Rows without a revision, and padding, are skipped. REQUIRES: rules with a revision are
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
  const int32_t* positions = nullptr;  // [num_rows] position of the newest token
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

// For kRandom: uniform in [0, 1).
constexpr float RandomScore(uint64_t seed, int layer, int head, int32_t next_position,
                            int32_t position) {
  const uint64_t key = ScoreSeed(seed, layer, head);
  return UnitFloat(RandomBits(SubBits(key, static_cast<uint32_t>(next_position)), position));
}

// For kBelowMean, with the margin of the prompt's statistic.
constexpr bool IsBelowMean(float weight, int32_t length) {
  return weight * static_cast<float>(length) < 1.0f - kBelowMeanMargin;
}

// Number of steps that kBelowMean has counted when a head holds `length` entries, this step
// included; below 1: counting has not begun.
constexpr int32_t StepsCounted(const DecodeRule& rule, int32_t length, int32_t cap) {
  return length - (cap - rule.history);
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_REVISE_SCORES_H_
