// Shrinking a live cache: every head of one (slot, layer) keeps the best of its entries, in fewer
// pages.
//
// Head h keeps keep[h] of its lengths[...] entries. Protected are those with position < sinks or
// position >= next_position - recent: the newest `recent` ones, as Select protects them of a prompt
// of next_position tokens. (The victim rule of kernels/kv_pages.h counts the incoming token among
// the recent ones, this does not: nothing comes in.) Of the rest those with the highest score stay,
// where the rule is by_position the highest positions; on equal scores the higher position stays; a
// NaN score counts as -infinity.
//
// Afterwards the survivors are entries 0 .. keep[h] - 1: those that were, lie where they lay, the
// others (key, value, position, and of score and log weights what there is) have moved into the
// holes, in any order. lengths[...] is keep[h], and where the rule is scored and keep[h] == cap,
// victims[...] is chosen anew for next_position. So a cap may shrink: the host writes the new one
// first. The pages past keep[h] are the host's to take back.
#ifndef HYDRANT_KERNELS_OPS_COMPACT_H_
#define HYDRANT_KERNELS_OPS_COMPACT_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// REQUIRES, for every head: its protected entries <= keep[h] <= its length <= max_length. Scores
// are there (rule.scored) unless the rule is by_position. The rule is not rolling.
struct CompactArgs {
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int32_t growth = -1;            // >= 0: the heads' caps become keep + growth first
  int sinks = 0;
  int recent = 0;
  int next_position = 0;
  int max_length = 0;  // no head holds more: a device plans its work by it
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
