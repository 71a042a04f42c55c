// Keys and values of prompts that have been read, kept outside the KV pool so that a prompt that
// begins alike need not be read again. They are as attention saw them, before anything was evicted,
// and hence right for every cache policy.
//
// A prefix block holds those of kPrefixBlockTokens tokens that follow each other, of all layers and
// KV heads. SavePrefix writes one layer of some blocks, LoadPrefix reads it back; what is saved is
// rounded to the blocks' dtype, so keys and values that were rounded to it before (RopeSplitArgs::
// kv_precision) come back with the same bits.
//
// Other blocks hold something else of a prompt in the same room (engine/cache/prefix_layout.h): the
// queries of two groups of num_kv_heads heads in place of keys and values, or sums as raw fp32.
#ifndef HYDRANT_KERNELS_OPS_PREFIX_BLOCKS_H_
#define HYDRANT_KERNELS_OPS_PREFIX_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/ops/prefill_attention.h"

namespace hydrant {

// A prompt may be read from the end of any of its blocks on: queries are worked through in tiles.
inline constexpr int kPrefixBlockTokens = kQueryTile;

struct PrefixBlocks {
  DType dtype = DType::kF32;  // that pages have, too
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
  // The element where the keys of a head begin; its values follow ValuesOffset() elements later.
  constexpr size_t KeysAt(int block, int layer, int head) const {
    return ((static_cast<size_t>(block) * num_layers + layer) * 2 * num_kv_heads + head) *
           HeadSize();
  }
  constexpr size_t ValuesOffset() const { return HeadSize() * num_kv_heads; }
  // Of one layer and head, a block can hold so many fp32 sums: a layer's, [num_kv_heads, SumsAHead]
  // side by side, begin at SumsAt().
  constexpr int SumsAHead() const {
    return static_cast<int>(BytesOf(dtype, 2 * HeadSize()) / sizeof(float));
  }
  float* SumsAt(int block, int layer) const {
    return reinterpret_cast<float*>(static_cast<char*>(memory) +
                                    BytesOf(dtype, KeysAt(block, layer, 0)));
  }
};

struct PrefixBlocksArgs {
  // Of the first block's first token: key j of head h at k + h * kv_head_stride + j * row_stride.
  // Those of the other blocks follow.
  MutableArenaRows k = nullptr;
  MutableArenaRows v = nullptr;     // null: the place of values is left alone
  int64_t kv_head_stride = 0;       // elements
  int64_t row_stride = 0;           // elements; head_dim where a head's rows lie side by side
  const int32_t* blocks = nullptr;  // [count] block ids, each once
  int count = 0;
  int layer = 0;
  PrefixBlocks pool;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_PREFIX_BLOCKS_H_
