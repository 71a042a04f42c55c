// Scores that are made of two parts, where the weights of these are known only when the prompt's
// last layer has been written: the first part lies in the entries' scores, the second in their
// notes.
#ifndef HYDRANT_KERNELS_COMBINE_NOTES_H_
#define HYDRANT_KERNELS_COMBINE_NOTES_H_

#include "kernels/kv_pages.h"

namespace hydrant {

// For every entry of every head of a slot, whose first log-weight is its note:
//
//   score = weight_score * score + weight_note * note
//
// in fp32 without contraction: the bits of DeriveScores' kCombine. REQUIRES: the slot is not
// weighted.
struct CombineNotesArgs {
  int slot = 0;
  float weight_score = 1.0f;
  float weight_note = 1.0f;
  KvPages pages;
  SequenceTables tables;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_COMBINE_NOTES_H_
