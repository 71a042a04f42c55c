// Appends a run of tokens to a sequence's heads: the decode-side insertion for many tokens at once.
// Their queries have attended to the heads' entries and to each other (PrefillAttention with a
// PagedPrefix); this operation evicts and stores.
//
// Head h holds length entries of its (slot, layer). With the n new entries it keeps keep =
// min(length + n, cap). As in the victim rule of kernels/kv_pages.h at the last token, entries with
// position < rule.sinks or position >= first_position + n - rule.recent are protected. Of the
// others the highest scores stay, by_position the highest positions; on equal scores the higher
// position stays; a NaN score counts as -infinity. A new entry's score is its sum. Old entries that
// stay keep their place; new ones that stay fill the holes and then the places from `length` on, in
// any order. lengths[...] is keep afterwards, and where the rule is scored and keep == cap,
// victims[...] is chosen for position first_position + n.
#ifndef HYDRANT_KERNELS_OPS_APPEND_PAGES_H_
#define HYDRANT_KERNELS_OPS_APPEND_PAGES_H_

#include <cstdint>
#include <limits>

#include "kernels/arena_rows.h"
#include "kernels/kv_pages.h"

namespace hydrant {

// REQUIRES: the rule is not rolling, not weighted, has no revision, and has decay 1 and gain 1;
// heads have a cap only where the rule is scored; length <= cap; no head has more protected
// entries, old and new, than its cap. The table names pages for keep entries.
struct AppendPagesArgs {
  ArenaRows k = nullptr;       // key j of head h at k + h * kv_head_stride + j * head_dim, rotated
  ArenaRows v = nullptr;       // the same
  int64_t kv_head_stride = 0;  // elements
  // [num_kv_heads, sum_stride] the attention that each new entry has received; read where the rule
  // is scored and not by_position, or where write_scores is set.
  const float* sums = nullptr;
  int64_t sum_stride = 0;  // elements
  // Writes sums as scores even where the rule is not scored: another
  // operation ranks entries by them.
  bool write_scores = false;
  int num_tokens = 0;      // n
  int first_position = 0;  // of the first new token
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;

  constexpr bool HasScores(const DecodeRule& rule) const {
    return pages.scores != nullptr && (rule.scored || write_scores);
  }
  constexpr int NextPosition() const { return first_position + num_tokens; }
  constexpr bool IsProtected(const DecodeRule& rule, int32_t position) const {
    return position < rule.sinks || position >= NextPosition() - rule.recent;
  }
  constexpr int32_t Keep(int32_t length, int32_t cap) const {
    return cap - length < num_tokens ? cap : length + num_tokens;
  }
};

// Copies scores of a (slot, layer)'s entries, in entry order, to rows (GatherScores; 0 for positions
// from scored_end on, which have none) or from rows (ScatterScores). Attention adds to the rows
// (ColumnStatistic::prefix_out) tile by tile, so scores do not depend on how a run is sliced.
// TimesValueLengths multiplies rows by the L2 norm of each entry's value, as kTimesLength does.
struct ScoreRowsArgs {
  float* rows = nullptr;  // [num_kv_heads, stride]
  int64_t stride = 0;     // elements
  int max_length = 0;     // upper bound of every head's length, for a device's work plan
  int32_t scored_end = std::numeric_limits<int32_t>::max();  // a position
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_APPEND_PAGES_H_
