// Keys and values of prefilled prompts, kept outside the KV pool for the prefix cache. They are
// stored as attention saw them, before any eviction, so they are valid for every cache policy.
//
// A prefix block holds kPrefixBlockTokens consecutive tokens of all layers and KV heads.
// SavePrefix writes one layer of some blocks, LoadPrefix reads it back. Saved values are rounded
// to the blocks' dtype, so keys and values rounded to it before (RopeSplitArgs::kv_precision) are
// restored with the same bits.
//
// Blocks of the same size may hold other data of a prompt (engine/cache/prefix_layout.h): the
// queries of two groups of num_kv_heads heads instead of keys and values, or sums as raw fp32.
#ifndef HYDRANT_KERNELS_OPS_PREFIX_BLOCKS_H_
#define HYDRANT_KERNELS_OPS_PREFIX_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant {

// Prefill can resume at the end of any block: blocks are as long as query tiles.
inline constexpr int kPrefixBlockTokens = kQueryTile;

struct PrefixBlocks {
  DType dtype = DType::kF32;  // a page dtype
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  void* memory = nullptr;  // [num_blocks, num_layers, 2, num_kv_heads, kPrefixBlockTokens,
                           // head_dim]: keys, then values

  // Elements of the keys, or the values, of one head, layer and block.
  constexpr size_t HeadSize() const { return static_cast<size_t>(kPrefixBlockTokens) * head_dim; }
  constexpr size_t BlockBytes() const {
    return BytesOf(dtype, HeadSize() * num_kv_heads * 2 * num_layers);
  }
  // Index of the first element of a head's keys; its values follow ValuesOffset() elements later.
  constexpr size_t KeysAt(int block, int layer, int head) const {
    return ((static_cast<size_t>(block) * num_layers + layer) * 2 * num_kv_heads + head) *
           HeadSize();
  }
  constexpr size_t ValuesOffset() const { return HeadSize() * num_kv_heads; }
  // Number of fp32 sums that fit in a block per layer and head. A layer's sums, [num_kv_heads,
  // SumsAHead], begin at SumsAt().
  constexpr int SumsAHead() const {
    return static_cast<int>(BytesOf(dtype, 2 * HeadSize()) / sizeof(float));
  }
  float* SumsAt(int block, int layer) const {
    return reinterpret_cast<float*>(static_cast<char*>(memory) +
                                    BytesOf(dtype, KeysAt(block, layer, 0)));
  }
};

struct PrefixBlocksArgs {
  // Rows of the first block's tokens: key j of head h at k + h * kv_head_stride + j * row_stride.
  // The rows of the other blocks follow.
  MutableArenaRows k = nullptr;
  MutableArenaRows v = nullptr;     // null: values are skipped
  int64_t kv_head_stride = 0;       // elements
  int64_t row_stride = 0;           // elements; head_dim if a head's rows are contiguous
  const int32_t* blocks = nullptr;  // [count] block ids, each once
  int count = 0;
  int layer = 0;
  PrefixBlocks pool;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_PREFIX_BLOCKS_H_
