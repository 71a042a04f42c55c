// Selecting what a compressed prompt keeps, and writing it into pages.
#ifndef HYDRANT_KERNELS_OPS_SELECT_H_
#define HYDRANT_KERNELS_OPS_SELECT_H_

#include <cstdint>

#include "kernels/arena_rows.h"
#include "kernels/kv_pages.h"
#include "kernels/rotary.h"

namespace hydrant {

// Per KV head, the entries a prompt of n tokens keeps: the first `sinks`, the last `recent`, and of
// the rest those with the highest score, `keep[h]` in all (keep[h] >= min(n, sinks + recent),
// keep[h] <= n). On equal scores the higher position stays (the victim rule evicts the lower one
// first). Indices come out in ascending order.
//
// Where `counts` is given the budget is the layer's (Ada-KV, arXiv 2407.11550, algorithm 1): all
// heads together keep `total` entries, keep is not read, and counts[h] is written. Each head gets
// its protected entries; what is left of `total` goes to the highest of all heads' other entries,
// on equal scores to the higher position, then to the lower head. The counts sum to `total`
// exactly, which must hold the protected and not exceed num_kv_heads * n. (Ada-KV's safeguard alpha
// is a second step: kernels/ops/share_budget.h.)
struct SelectArgs {
  const float* scores = nullptr;  // [num_kv_heads, score_stride]
  int64_t score_stride = 0;       // elements
  int num_kv_heads = 0;
  int n = 0;
  int sinks = 0;
  int recent = 0;
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int32_t* kept = nullptr;        // [num_kv_heads, kept_stride]
  int64_t kept_stride = 0;        // elements; a row holds what its head may keep, n at most
  int32_t* counts = nullptr;      // [num_kv_heads]; null: keep[h] says what each head keeps
  int total = 0;                  // with counts: entries of all heads, the protected included
};

// Writes the kept entries of one (slot, layer) into its pages, sets lengths[slot, layer, h] =
// keep[h], and where the rule is scored and keep[h] == cap leaves the first victim, for position n
// (kernels/kv_pages.h). Scores are written where they are given or the rule is scored; by_position
// they are positions. Into rolling heads keys go rotated back by their position, with their ranks,
// and the first victim is that for rank keep[h].
struct WritePagesArgs {
  ArenaRows k = nullptr;  // key j of head h at k + h * kv_head_stride + j * head_dim
  ArenaRows v = nullptr;
  int64_t kv_head_stride = 0;     // elements
  const float* scores = nullptr;  // [num_kv_heads, score_stride]; null: scores start at 0
  int64_t score_stride = 0;
  float score_scale = 1.0f;       // of the scores as they are written
  const int32_t* kept = nullptr;  // [num_kv_heads, kept_stride], positions to keep, ascending;
                                  // null: positions 0 .. keep[h] - 1
  int64_t kept_stride = 0;
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int32_t growth = -1;            // >= 0: the heads' caps become keep + growth first
  // [num_kv_heads, beside_stride] what each position's entry has beside its score: a window sum, a
  // second score or a count (kernels/entry_state.h); null: none. Not of a slot that is weighted.
  const float* beside = nullptr;
  int64_t beside_stride = 0;  // elements
  int n = 0;                  // prompt tokens
  // Entries that lie in the pages of all heads before, and are not written there; their state is.
  // REQUIRES: at most keep[h], kept is null
  int num_written = 0;
  Rotary rotary = {};  // what rotated k, for rolling slots
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SELECT_H_
