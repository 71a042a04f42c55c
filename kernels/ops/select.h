// Selects the entries that a compressed prompt keeps, and writes them into pages.
#ifndef HYDRANT_KERNELS_OPS_SELECT_H_
#define HYDRANT_KERNELS_OPS_SELECT_H_

#include <cstdint>

#include "kernels/arena_rows.h"
#include "kernels/kv_pages.h"
#include "kernels/rotary.h"

namespace hydrant {

// Per KV head, the entries that a prompt of n tokens keeps: the first `sinks`, the last `recent`,
// and of the rest those with the highest score, `keep[h]` in total (keep[h] >= min(n, sinks +
// recent), keep[h] <= n). On equal scores the higher position stays (the victim rule evicts the
// lower one first). Indices are in ascending order.
//
// With `counts` the budget is per layer (Ada-KV, arXiv 2407.11550, algorithm 1): all heads together
// keep `total` entries, keep is not read, and counts[h] is written. Each head gets its protected
// entries; the rest of `total` goes to the highest scores among all heads' other entries, on equal
// scores to the higher position, then to the lower head. The counts sum to `total` exactly.
// REQUIRES: total covers the protected entries and does not exceed num_kv_heads * n. (Ada-KV's
// safeguard alpha is a second step: kernels/ops/share_budget.h.)
struct SelectArgs {
  const float* scores = nullptr;  // [num_kv_heads, score_stride]
  int64_t score_stride = 0;       // elements
  int num_kv_heads = 0;
  int n = 0;
  int sinks = 0;
  int recent = 0;
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int32_t* kept = nullptr;        // [num_kv_heads, kept_stride]
  int64_t kept_stride = 0;        // elements; at least the most entries that a head may keep
  int32_t* counts = nullptr;      // [num_kv_heads]; null: the budget is keep[h] per head
  int total = 0;                  // with counts: total entries of all heads, protected included
};

// Writes the kept entries of one (slot, layer) into its pages and sets lengths[slot, layer, h] =
// keep[h]; where the rule is scored and keep[h] == cap, sets the first victim, for position n
// (kernels/kv_pages.h). Scores are written if they are given or the rule is scored; by_position
// they are positions. Rolling heads store keys rotated back by their position, with ranks as
// positions, and their first victim is for rank keep[h].
struct WritePagesArgs {
  ArenaRows k = nullptr;  // key j of head h at k + h * kv_head_stride + j * head_dim
  ArenaRows v = nullptr;
  int64_t kv_head_stride = 0;     // elements
  const float* scores = nullptr;  // [num_kv_heads, score_stride]; null: scores start at 0
  int64_t score_stride = 0;
  float score_scale = 1.0f;       // factor of the scores as written
  const int32_t* kept = nullptr;  // [num_kv_heads, kept_stride], positions to keep, ascending;
                                  // null: positions 0 .. keep[h] - 1
  int64_t kept_stride = 0;
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int32_t growth = -1;            // >= 0: first sets the heads' caps to keep + growth
  // [num_kv_heads, beside_stride] a number stored beside the score of each position's entry: a window
  // sum, a second score or a count (kernels/entry_state.h); null: none. REQUIRES: null where the slot
  // is weighted.
  const float* beside = nullptr;
  int64_t beside_stride = 0;  // elements
  int n = 0;                  // prompt tokens
  // Entries that the pages of all heads already hold: their data is not written again, their state
  // is. REQUIRES: at most keep[h]; kept is null.
  int num_written = 0;
  Rotary rotary = {};  // the rotation of k, for rolling slots
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SELECT_H_
