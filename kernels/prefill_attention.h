// Causal attention of a run of queries over the layer scratch, with the exact column sums H2O
// scores by.
//
// Query i of the run has position first_position + i and sees keys 0 .. first_position + i. Softmax
// in fp32 after `scale`. Column sums (H2O, arXiv 2306.14048, section 4: the accumulated attention
// score, for a whole prompt):
//   column_sums[h, j] += sum over the run's queries of reduce over the group of KV head h of
//   a[query, j]
// Queries before first_summed_position are left out of the sums: the last w queries of a prompt
// alone give SnapKV's window (arXiv 2404.14469, section 4), and cost only their own tiles.
// Queries are worked through in tiles of kQueryTile aligned to absolute positions, and a tile's
// sums are added in order, so that any slicing of the prompt into runs that start at multiples of
// kQueryTile gives the same bits.
//
// A prefix that lies in pages already may come before the scratch's keys: every query sees all live
// entries of its KV head there, then keys 0 .. first_position + i as ever. Positions count within
// the suffix, so that its slicing changes no bit either.
#ifndef HYDRANT_KERNELS_PREFILL_ATTENTION_H_
#define HYDRANT_KERNELS_PREFILL_ATTENTION_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

inline constexpr int kQueryTile = 32;

// The entries of one (slot, layer). Heads may differ in length: lengths are read on the device.
// Log-weights are not.
struct PagedPrefix {
  KvPages pages;
  SequenceTables tables;
  int slot = 0;
  int layer = 0;
  int max_entries = 0;      // no head holds more: a device plans its work by it
  float* sums = nullptr;    // [num_kv_heads, sums_stride], the column sums of the entries, in their
                            // order, accumulated into; null: not wanted
  int64_t sums_stride = 0;  // elements
};

struct PrefillAttentionArgs {
  const float* q = nullptr;    // [num_queries, num_heads, head_dim], turned by RoPE
  const float* k = nullptr;    // key j of head h at k + h * kv_head_stride + j * head_dim
  const float* v = nullptr;    // likewise
  int64_t kv_head_stride = 0;  // elements
  int num_queries = 0;
  int first_position = 0;  // a multiple of kQueryTile
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 1.0f;
  void* out = nullptr;            // [num_queries, num_heads, head_dim]
  DType out_dtype = DType::kF32;  // or what the backend wants (Backend::ActivationDType)
  float* column_sums =
      nullptr;                // [num_kv_heads, column_stride], accumulated into; null: not wanted
  int64_t column_stride = 0;  // elements
  GroupReduce reduce = GroupReduce::kMean;
  int first_summed_position = 0;        // any; beyond the run: the sums stay as they are
  const PagedPrefix* prefix = nullptr;  // in the caller's memory; null: none
  // kBF16 or kF16 let a device round q, k, v and the weights to it before it multiplies; sums stay
  // fp32.
  DType precision = DType::kF32;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_PREFILL_ATTENTION_H_
