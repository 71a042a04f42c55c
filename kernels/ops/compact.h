// Compacts a live cache: every head of one (slot, layer) keeps the best of its
// entries, in fewer pages.
//
// Head h keeps keep[h] of its lengths[...] entries. Protected are entries with position < sinks or
// position >= next_position - recent: the newest `recent` ones, as in Select for a prompt of
// next_position tokens. (The victim rule of kernels/kv_pages.h counts the incoming token as recent;
// here there is none.) Of the others the highest scores stay, by_position the highest positions; on
// equal scores the higher position stays; a NaN score counts as -infinity.
//
// Afterwards the survivors are entries 0 .. keep[h] - 1: survivors already below keep[h] stay in
// place, the others (key, value, position, and the score and log weights if present) move into the
// holes, in any order. lengths[...] is keep[h], and where the rule is scored and keep[h] == cap,
// victims[...] is chosen anew for next_position. To shrink a cap, the host writes the new one
// first. The caller frees the pages past keep[h].
#ifndef HYDRANT_KERNELS_OPS_COMPACT_H_
#define HYDRANT_KERNELS_OPS_COMPACT_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// REQUIRES, for every head: its protected entries <= keep[h] <= its length <= max_length. Scores
// exist (rule.scored) unless the rule is by_position. The rule is not rolling.
struct CompactArgs {
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int32_t growth = -1;            // >= 0: first sets the heads' caps to keep + growth
  int sinks = 0;
  int recent = 0;
  int next_position = 0;
  int max_length = 0;  // upper bound of every head's length, for a device's work plan
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;

  constexpr bool IsProtected(int32_t position) const {
    return position < sinks || position >= next_position - recent;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_COMPACT_H_
