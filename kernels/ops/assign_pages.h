// Giving pages to the heads of one (slot, layer) when only the device knows how much each keeps.
//
// The layer's rows of the block table (num_kv_heads * row_width entries, one run) begin with a
// list of block ids, as many as all heads together may need. Head 0 takes the first
// PagesOf(keep[0]) of them into its row, head 1 the next, and so on: head h's begin at
// AssignedFrom(). The ids that are left belong to no head. The host assigns the same way when it
// has read keep. What the rows hold past a head's pages is undefined.
#ifndef HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_
#define HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// The place in the layer's pages from which a head is assigned its pages; of head num_kv_heads:
// from which the rest belongs to none. keep: [num_kv_heads].
constexpr int64_t AssignedFrom(const int32_t* keep, int head, int32_t block_size) {
  int64_t from = 0;
  for (int h = 0; h < head; ++h) from += PagesOf(keep[h], block_size);
  return from;
}

// REQUIRES: no head takes more than row_width pages, all heads together no more than there are.
struct AssignPagesArgs {
  const int32_t* keep = nullptr;  // [num_kv_heads]
  int block_size = 16;
  int slot = 0;
  int layer = 0;
  SequenceTables tables;
  PageIds* blocks = nullptr;  // tables.blocks, to be written
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_ASSIGN_PAGES_H_
