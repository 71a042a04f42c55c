// A run of tokens that follow what a sequence's heads hold: what decoding does for one token, for
// many at once. Their queries have attended to the heads' entries and to each other
// (PrefillAttention with a PagedPrefix); here the entries compete.
//
// Head h holds length entries of its (slot, layer). With the n new ones it keeps keep = min(length
// + n, cap). Protected are, as by the victim rule of kernels/kv_pages.h when the last token came,
// those with position < rule.sinks or position >= first_position + n - rule.recent. Of the rest
// those with the highest score stay, where the rule is by_position the highest positions; on equal
// scores the higher position stays; a NaN score counts as -infinity. A new entry's score is
// its sum. Entries that stay lie where they lay; new ones that stay fill the holes and
// then the places from `length` on, in any order. lengths[...] is keep afterwards, and where the
// rule is scored and keep == cap, victims[...] is chosen for position first_position + n.
#ifndef HYDRANT_KERNELS_OPS_APPEND_PAGES_H_
#define HYDRANT_KERNELS_OPS_APPEND_PAGES_H_

#include <cstdint>

#include "kernels/arena_rows.h"
#include "kernels/kv_pages.h"

namespace hydrant {

// REQUIRES: the rule is not rolling, not weighted, has no revision, and decay and gain 1; heads
// have a cap only where it is scored; length <= cap; no head's protected entries, old and new, are
// more than its cap. The table names pages for keep entries.
struct AppendPagesArgs {
  ArenaRows k = nullptr;       // key j of head h at k + h * kv_head_stride + j * head_dim, turned
  ArenaRows v = nullptr;       // the same
  int64_t kv_head_stride = 0;  // elements
  // [num_kv_heads, sum_stride] the attention that each new entry has received; read where the rule
  // is scored and not by_position, or scores are to be written.
  const float* sums = nullptr;
  int64_t sum_stride = 0;  // elements
  // Sums are written as scores even where the rule is not scored: something else ranks by them.
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

// The scores of a (slot, layer)'s entries, in their order, to and from rows: attention adds to rows
// (ColumnStatistic::prefix_out), tile by tile, so that scores come to the same however a run is
// sliced.
struct ScoreRowsArgs {
  float* rows = nullptr;  // [num_kv_heads, stride]
  int64_t stride = 0;     // elements
  int max_length = 0;     // no head holds more: a device plans its work by it
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_APPEND_PAGES_H_
