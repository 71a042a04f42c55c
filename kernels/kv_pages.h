// The layout of the KV pool in kernels. A page ("block") holds block_size slots of one KV head of
// one layer: keys, values and positions. A page may be shared by several sequences and is
// immutable while it is. The policy's per-entry state lies elsewhere, for policies that need one,
// and belongs to a single sequence:
//
//   page     keys, values  [num_blocks, block_size, head_dim]  layout.dtype, rows as in
//                                                       kernels/page_row.h; keys are rotated
//                                                       (RoPE), except in rolling heads
//                                                       (DecodeRule)
//            positions     [num_blocks, block_size]     int32  position of the token in its
//                                                       sequence; in rolling heads its rank
//   state    scores        [states, block_size]         fp32   the policy's running score
//            log_weights   [states, block_size, 2]      fp32   two numbers of each entry, a state's
//                                                       every layout.LogWeightStride(): log weights
//                                                       of attention where the rule is weighted
//                                                       (kernels/ops/decode_attention.h)
//
// kernels/entry_state.h says what else the two numbers may be, and where state lies. An operation on
// one slot gets null pointers for the state that the slot lacks and skips it; an operation on many
// slots goes by their rules.
//
// Slot order inside a head is arbitrary: `positions` is authoritative, attention does not depend on
// order. Entry e of a head lives in slot e % block_size of the head's page e / block_size. All
// pointers are borrowed and device-resident.
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
  int log_weight_stride = 0;  // floats from one state to the next; 0: 2 * block_size

  constexpr size_t PageBytes() const {
    return static_cast<size_t>(block_size) * (2 * BytesOf(dtype, head_dim) + sizeof(int32_t));
  }
  // Bytes of a page with its scores and log weights.
  constexpr size_t BytesWithState() const { return PageBytes() + block_size * 3 * sizeof(float); }
  constexpr int LogWeightStride() const {
    return log_weight_stride > 0 ? log_weight_stride : 2 * block_size;
  }
};

inline constexpr int32_t kNoState = -1;

// An entry of the block table: a page, and the state of its entries.
struct PageIds {
  int32_t data = 0;
  int32_t state = 0;  // kNoState: the sequence keeps none

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

// Number of pages that hold `entries` entries of one head.
constexpr int64_t PagesOf(int64_t entries, int64_t block_size) {
  return (entries + block_size - 1) / block_size;
}

enum class GroupReduce : uint8_t { kMean, kMax, kSumOfSquares };

// With a revision, scores are revised after each step and the victim is chosen by the revised
// scores (kernels/ops/revise_scores.h).
enum class Revision : uint8_t { kNone, kLayerMean, kRandom, kBelowMean };

// One rule covers the decode side of most policies:
//   w      = group_reduce over the query heads of this KV head of the attention weight on a slot
//   score  = decay * score + gain * w
//   victim = lowest score among entries with pos >= sinks and pos <= next_pos - recent
// A new entry starts from score 0, then adds its own weight. Ties go to the lower position. With
// by_position the score is the position itself: the victim is the oldest entry that is not a sink.
//
// With `rolling` a sequence may run past the model's position limit (StreamingLLM, arXiv
// 2309.17453, section 3.2: positions within the cache). Keys are stored before RoPE, and "position"
// means the entry's rank among the head's live entries, 0 .. length - 1 in token order: in
// `positions`, in sinks and recent (next_pos is the length), and in the angle by which a key is
// rotated. When an entry is evicted, the ranks above it decrease by one. The kept set equals that
// by true positions: the first `sinks` and the last `recent` tokens are never evicted, so they have
// the lowest and the highest ranks, and ranks order the rest as positions do.
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
  int32_t history = 0;     // for kBelowMean: number of steps before the cap that count
  uint64_t seed = 0;       // of the random scores
  bool weighted = false;   // entries have log weights; false: all are 0, and none are read
  bool predicted = false;  // appended entries get predicted scores (kernels/ops/predict_scores.h)

  // Whether state changes at every step. If not, it is written once with the
  // entries, or does not exist.
  constexpr bool ChangesState() const { return weighted || ScoresEntries(); }
  // Whether a new entry starts from score 0, and each step changes it.
  constexpr bool ScoresEntries() const { return scored && !by_position; }
};

// Device-side tables of the sequences: one row per sequence slot, at fixed addresses for the
// life of the engine. Index of (slot, layer, head) in the [max_seqs, num_layers,
// num_kv_heads] arrays: HeadIndex().
struct SequenceTables {
  int num_layers = 0;
  int num_kv_heads = 0;
  const PageIds* blocks = nullptr;     // arena of block table entries
  const int64_t* row_begin = nullptr;  // [max_seqs] where the slot's rows start in `blocks`
  const int32_t* row_width = nullptr;  // [max_seqs] entries reserved per (layer, head)
  // [max_seqs, layers, kv_heads] entries a head may hold; INT32_MAX: no cap
  int32_t* caps = nullptr;
  int32_t* lengths = nullptr;  // [max_seqs, layers, kv_heads] live entries
  // [max_seqs, layers, kv_heads] entry to overwrite next; read where length == cap
  int32_t* victims = nullptr;
  const DecodeRule* rules = nullptr;  // [max_seqs]
  int32_t* unassigned = nullptr;      // [max_seqs] number of unassigned page ids
                                      // (kernels/ops/assign_pages.h)

  constexpr size_t HeadIndex(int slot, int layer, int head) const {
    return (static_cast<size_t>(slot) * num_layers + layer) * num_kv_heads + head;
  }
  // Pages of one head: entry e lives in page e / block_size.
  constexpr const PageIds* HeadBlocks(int slot, int layer, int head) const {
    return blocks + row_begin[slot] +
           static_cast<int64_t>(layer * num_kv_heads + head) * row_width[slot];
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_KV_PAGES_H_
