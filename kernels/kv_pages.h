// The layout of the KV pool, as kernels see it. A page ("block") holds block_size slots of one KV
// head of one layer: keys, values and positions. It may have several owners, and stays as it is
// while it has. What a policy knows of these entries, their state, lies elsewhere, where the policy
// needs any; one sequence alone reads and changes it:
//
//   page     keys, values  [num_blocks, block_size, head_dim]  layout.dtype, rows as
//                                                       kernels/page_row.h has them; keys carry
//                                                       RoPE, but for those of rolling heads
//                                                       (DecodeRule)
//            positions     [num_blocks, block_size]     int32  position of the token in its
//                                                       sequence; in rolling heads its rank
//   state    scores        [states, block_size]         fp32   the policy's running score
//            log_weights   [states, block_size, 2]      fp32   a pair of numbers, a state's every
//                                                       layout.LogWeightStride(): log weights of
//                                                       attention, where the rule is weighted
//                                                       (kernels/ops/decode_attention.h)
//
// kernels/entry_state.h says what else the pair may be, and where state lies. An operation on one
// slot gets null for what the slot has none of, and leaves it alone; what works on many goes by
// their rules.
//
// Slot order inside a head is free: `positions` is the truth, attention does not care. Entry e of a
// head lives in slot e % block_size of the head's pages e / block_size. All pointers are borrowed
// and device-resident.
#ifndef HYDRANT_KERNELS_KV_PAGES_H_
#define HYDRANT_KERNELS_KV_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace hydrant {

struct KvLayout {
  DType dtype = DType::kF32;
  int head_dim = 0;
  int block_size = 16;
  int num_blocks = 0;
  int log_weight_stride = 0;  // floats from a state's log weights to the next's; 0: 2 * block_size

  constexpr size_t PageBytes() const {
    return static_cast<size_t>(block_size) * (2 * BytesOf(dtype, head_dim) + sizeof(int32_t));
  }
  // Where a page has scores and log weights beside it.
  constexpr size_t BytesWithState() const { return PageBytes() + block_size * 3 * sizeof(float); }
  constexpr int LogWeightStride() const {
    return log_weight_stride > 0 ? log_weight_stride : 2 * block_size;
  }
};

inline constexpr int32_t kNoState = -1;

// What an entry of the block table names: a page, and the state of its entries.
struct PageIds {
  int32_t data = 0;
  int32_t state = 0;  // kNoState: its sequence keeps none

  friend constexpr bool operator==(const PageIds&, const PageIds&) = default;
};

struct KvPages {
  KvLayout layout;
  void* keys = nullptr;
  void* values = nullptr;
  int32_t* positions = nullptr;
  float* scores = nullptr;
  float* log_weights = nullptr;
};

// Pages that so many entries of one head lie in.
constexpr int64_t PagesOf(int64_t entries, int64_t block_size) {
  return (entries + block_size - 1) / block_size;
}

enum class GroupReduce : uint8_t { kMean, kMax, kSumOfSquares };

// Where a rule has a revision, scores are revised after each step, and the victim is chosen by what
// they have become (kernels/ops/revise_scores.h).
enum class Revision : uint8_t { kNone, kLayerMean, kRandom, kBelowMean };

// One rule covers the decode side of most policies:
//   w      = group_reduce over the query heads of this KV head of the attention weight on a slot
//   score  = decay * score + gain * w
//   victim = lowest score among entries with pos >= sinks and pos <= next_pos - recent
// A new entry starts from score 0, then takes its own weight. Ties go to the lower position.
// With by_position the score is the position itself: the victim is the oldest entry that is no
// sink.
//
// With `rolling` a stream may run past every position the model knows (StreamingLLM, arXiv
// 2309.17453, section 3.2: positions within the cache). Keys lie in the pages as they were before
// RoPE, and where a position is spoken of it is the entry's rank among the head's live entries, 0
// .. length - 1 in the order of their tokens: in `positions`, in sinks and recent (next_pos is the
// length), and in the angle a key is rotated by. When an entry leaves, those above it go down by
// one. The kept set is what it would be by true positions: the first `sinks` and the last `recent`
// tokens never leave, so they are the lowest and the highest ranks, and ranks order the rest as
// positions do.
struct DecodeRule {
  float decay = 1.0f;
  float gain = 1.0f;
  GroupReduce reduce = GroupReduce::kMean;
  bool by_position = false;
  bool scored = false;  // false: scores are neither read nor written (policy full)
  int32_t sinks = 0;
  int32_t recent = 0;    // counts the incoming token
  bool rolling = false;  // REQUIRES: scored
  Revision revision = Revision::kNone;
  int32_t history = 0;    // of kBelowMean: the steps before the cap that count
  uint64_t seed = 0;      // of what is drawn
  bool weighted = false;  // entries have log weights; false: all are 0, and none is read

  // Whether state changes at every step. Where it does not, it is written once with the entries, or
  // there is none.
  constexpr bool ChangesState() const { return weighted || ScoresEntries(); }
  // Whether a new entry starts from score 0, and each step changes it.
  constexpr bool ScoresEntries() const { return scored && !by_position; }
};

// What the kernels know of the sequences: one row per sequence slot, at fixed addresses for the
// life of the engine. Index of (slot, layer, head) in the [max_seqs, num_layers, num_kv_heads]
// arrays: HeadIndex().
struct SequenceTables {
  int num_layers = 0;
  int num_kv_heads = 0;
  const PageIds* blocks = nullptr;     // arena of the table's entries
  const int64_t* row_begin = nullptr;  // [max_seqs] where the slot's rows start in `blocks`
  const int32_t* row_width = nullptr;  // [max_seqs] entries reserved per (layer, head)
  int32_t* caps =
      nullptr;  // [max_seqs, layers, kv_heads] entries a head may hold; INT32_MAX: no cap
  int32_t* lengths = nullptr;  // [max_seqs, layers, kv_heads] live entries
  int32_t* victims =
      nullptr;  // [max_seqs, layers, kv_heads] entry to overwrite next; read where length == cap
  const DecodeRule* rules = nullptr;  // [max_seqs]
  int32_t* unassigned = nullptr;      // [max_seqs] ids of no head (kernels/ops/assign_pages.h)

  constexpr size_t HeadIndex(int slot, int layer, int head) const {
    return (static_cast<size_t>(slot) * num_layers + layer) * num_kv_heads + head;
  }
  // Pages of one head: entry e lives in pages e / block_size.
  constexpr const PageIds* HeadBlocks(int slot, int layer, int head) const {
    return blocks + row_begin[slot] +
           static_cast<int64_t>(layer * num_kv_heads + head) * row_width[slot];
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_KV_PAGES_H_
