// The interface between decode attention and its vector kernels, which process one (row, KV head)
// at a time. Plain data and raw pointers only: each implementation is compiled for its instruction
// set (decode_attention_base.cc, decode_attention_avx512.cc).
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_DECODE_ATTENTION_KERNELS_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_DECODE_ATTENTION_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/pages/page_rows.h"
#include "kernels/kv_pages.h"
#include "kernels/ops/decode_attention.h"
#include "kernels/page_row.h"
#include "kernels/rotary.h"

namespace hydrant::cpu {

inline constexpr int kPartEntries = 256;
inline constexpr int kDimRound = 16;  // scratch rows are whole vectors on every instruction set

constexpr int RoundUpDim(int head_dim) {
  return (head_dim + kDimRound - 1) / kDimRound * kDimRound;
}
constexpr int NumParts(int entries) { return (entries + kPartEntries - 1) / kPartEntries; }

// Floats for the group's queries and, in a rolling head, the part's rotated keys.
constexpr size_t PartScratch(int group, int head_dim, bool rolling) {
  return static_cast<size_t>(group + (rolling ? kPartEntries : 0)) * RoundUpDim(head_dim);
}

// Common to all heads of a call.
struct DecodeArgs {
  int head_dim = 0;
  int group = 0;  // query heads per KV head
  int block_size = 0;
  DType dtype = DType::kF32;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  Rotary rotary;         // for rolling heads
  void* keys = nullptr;  // the pool's pages (kernels/kv_pages.h)
  void* values = nullptr;
  int32_t* positions = nullptr;
  float* scores = nullptr;
  int64_t log_weight_stride = 0;
};

struct DecodeHead {
  const float* q = nullptr;      // [group, head_dim]
  const float* k = nullptr;      // [head_dim], the new entry
  const float* v = nullptr;      // [head_dim]
  float* out = nullptr;          // [group, head_dim]
  const float* sinks = nullptr;  // [group], the query heads' sink logits; null: none
  const PageIds* blocks = nullptr;
  const DecodeRule* rule = nullptr;
  float* log_weights = nullptr;  // the pool's; null: none
  int32_t* victim = nullptr;     // null: no victim is chosen
  int32_t position = 0;          // of the new entry; in a rolling head its rank
  int32_t rank_above = 0;        // rolling heads: ranks greater than this decrease by one
  int num_entries = 0;           // including the new one
  int new_entry = 0;
  int parts_left = 0;  // for a head split over threads; accessed atomically

  // Scratch from the first part to the join.
  float* weights = nullptr;   // [group, weight_stride]: exp(logit - the part's maximum)
  int64_t weight_stride = 0;  // kPartEntries * number of parts
  float* part_max = nullptr;  // [parts, group]
  // With log weights, `shares` and `part_max` belong to the denominator, `weights` and
  // `part_numerator_max` to the numerator; without, each pair is one array.
  float* shares = nullptr;
  float* part_numerator_max = nullptr;
  float* part_sum = nullptr;  // [parts, group]
  float* part_out = nullptr;  // [parts, group, RoundUpDim(head_dim)], unnormalised
};

// Entries [part * kPartEntries, ...) of a head.
struct DecodePart {
  const DecodeHead* head = nullptr;  // null: none
  int part = 0;
};

struct DecodeKernels {
  // Attends the part's entries, after storing the new entry if it is one of them. next: the
  // part that the thread will probably attend next, for prefetching. scratch: PartScratch()
  // floats of the calling thread.
  void (*attend_part)(const DecodeArgs& shape, const DecodePart& part, const DecodePart& next,
                      float* scratch);
  // Joins the parts: the output, the scores, the next victim.
  void (*join)(const DecodeArgs& shape, const DecodeHead& head);
};

DecodeKernels DecodeKernelsBase();
DecodeKernels DecodeKernelsAvx512();

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_DECODE_ATTENTION_KERNELS_H_
